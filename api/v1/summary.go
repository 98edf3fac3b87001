package v1

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// Summary of the pools for the columns of `kubectl get nodestorages`, of which each shows a single value: the
// values of all pools, in their order, separated by commas. Programs should read the pools instead.
type Summary struct {
	// Pools are the names of the pools.
	// +optional
	Pools string `json:"pools,omitempty"`
	// Size of each pool.
	// +optional
	Size string `json:"size,omitempty"`
	// Used is how full each pool is, in percent.
	// +optional
	Used string `json:"used,omitempty"`
	// Free is the space that no logical volume holds.
	// +optional
	Free string `json:"free,omitempty"`
	// Reclaimable is the space held by volumes that may be evicted.
	// +optional
	Reclaimable string `json:"reclaimable,omitempty"`
	// Promised is the space that PersistentVolumes still need.
	// +optional
	Promised string `json:"promised,omitempty"`
}

// Summarize returns the summary of pools.
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

// readable formats bytes like the tables of `flexlvm volumes list`: 1.81TiB.
func readable(q resource.Quantity) string {
	return strings.ReplaceAll(volume.Bytes(q.Value()).String(), " ", "")
}
