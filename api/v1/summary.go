package v1

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// Summary is for people: a column of `kubectl get nodestorages` shows one value
// and no more, so what the pools say is put together here, in their order and
// with commas between them. Programs read the pools.
type Summary struct {
	// Pools are their names.
	// +optional
	Pools string `json:"pools,omitempty"`
	// Size of each.
	// +optional
	Size string `json:"size,omitempty"`
	// Used is how full each is, in per cent.
	// +optional
	Used string `json:"used,omitempty"`
	// Free is what no logical volume holds.
	// +optional
	Free string `json:"free,omitempty"`
	// Reclaimable is what volumes hold that may be evicted.
	// +optional
	Reclaimable string `json:"reclaimable,omitempty"`
	// Promised is what PersistentVolumes still need.
	// +optional
	Promised string `json:"promised,omitempty"`
}

// Summarize makes the summary of pools.
func Summarize(pools []Pool) Summary {
	column := func(cell func(Pool) string) string {
		cells := make([]string, len(pools))
		for i, p := range pools {
			cells[i] = cell(p)
		}
		return strings.Join(cells, ",")
	}
	return Summary{
		Pools:       column(func(p Pool) string { return p.Name }),
		Size:        column(func(p Pool) string { return readable(p.Size) }),
		Used:        column(func(p Pool) string { return fmt.Sprintf("%d%%", p.UsedPercent) }),
		Free:        column(func(p Pool) string { return readable(p.Free) }),
		Reclaimable: column(func(p Pool) string { return readable(p.Reclaimable) }),
		Promised:    column(func(p Pool) string { return readable(p.Promised) }),
	}
}

// readable gives bytes as the tables of `flexlvm volumes list` do: 1.81TiB.
func readable(q resource.Quantity) string {
	return strings.ReplaceAll(volume.Bytes(q.Value()).String(), " ", "")
}
