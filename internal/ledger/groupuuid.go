package ledger

import (
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// GroupUUIDs returns the UUIDs of the volume groups of a node's pools, as the node has reported them.
func (l *Ledger) GroupUUIDs(node string) map[volume.PoolName]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[volume.PoolName]string{}
	if a, there := l.accounts[pv.NodeLabelValue(node)]; there {
		for name, p := range a.pools {
			out[name] = p.uuid
		}
	}
	return out
}
