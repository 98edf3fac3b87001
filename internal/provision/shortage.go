package provision

import (
	"fmt"

	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Causes for which no node can take a volume. They stay the same while the numbers and names in their
// messages change.
const (
	causeNoReport = "no report"
	causeNoPool   = "no pool"
	causeClosed   = "closed"
	causeNoRoom   = "no room"
	causeRoom     = "" // some node can take it
)

// shortage returns why no node can take a volume of a class, or which node can, given the largest offer
// of the permitted nodes. none is the subject of the message: "no node", with the restriction of the
// nodes.
func shortage(none, class string, pool volume.PoolName, size volume.Bytes, largest ledger.Largest) (cause, message string) {
	named := fmt.Sprintf("%s %q", pool.Noun(), pool)
	with := fmt.Sprintf("%s with %s", volume.Pluralize(largest.Nodes, "node", "nodes"), named)
	switch {
	case largest.Nodes == 0 && largest.Reported == 0:
		return causeNoReport, "no node has reported its volume groups; check `kubectl get nodestorages` and the pods of DaemonSet flexlvm-gc (`kubectl get pods -A -l app.kubernetes.io/name=flexlvm-gc`)"
	case largest.Nodes == 0:
		return causeNoPool, fmt.Sprintf("%s has %s, which StorageClass %q asks for (%s reported); %s",
			none, named, class, volume.Pluralize(largest.Reported, "node has", "nodes have"), howToCreate(pool))
	case largest.MaxVolumeSize >= size:
		return causeRoom, fmt.Sprintf("there is room for it now, on node %q", largest.Node)
	case largest.Closed != "":
		return causeClosed, fmt.Sprintf("%s has room for it: of %s none can give any, and node %q %s", none, with, largest.Node, largest.Closed)
	}
	return causeNoRoom, fmt.Sprintf("%s has room for it: %s are asked for, and the most that any of %s can give is %s, on node %q",
		none, ledger.AmountOf(size), with, ledger.AmountOf(largest.MaxVolumeSize), largest.Node)
}

// howToCreate returns how to create a pool on a node. A volume group needs no shell there.
func howToCreate(pool volume.PoolName) string {
	if pool.Thin() || pool.Directory() {
		return fmt.Sprintf("run `%s` on a node", pool.CreateCommand())
	}
	return fmt.Sprintf("name the nodes' disks in a VolumeGroup (docs/volume-groups.md; `kubectl describe nodestorage NODE` shows its result), or run `%s` on a node", pool.CreateCommand())
}
