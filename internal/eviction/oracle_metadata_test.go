package eviction_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// checkMetadata checks that one volume is evicted for the LVM metadata area of a group if that is too full, if nothing
// else frees some of it, and if all that may be evicted would be enough. It reports whether one is.
func (o oracle) checkMetadata(t *testing.T, seed uint64, got eviction.Result, group inventory.Pool) bool {
	t.Helper()
	if group.Thin != nil {
		return false
	}
	evicted, waits := o.forMetadata(got, group.Name.Group())
	left := o.metadataCandidates(group.Name)
	usable := group.MetadataSize / 2
	closed := func(use volume.Bytes) bool { return group.MetadataSize > 0 && use*100 >= usable*90 }
	use := usable - group.MetadataFree
	if got.Blocked != "" || waits || group.MetadataFree == 0 || !closed(use) || closed(use-volume.Bytes(400*len(left)/512*512)) {
		require.Empty(t, evicted, "seed %d", seed)
		return false
	}
	require.Len(t, evicted, 1, "seed %d", seed)
	for _, v := range left {
		require.False(t, v.LastUsed.Truncate(time.Second).Before(evicted[0].LastUsed.Truncate(time.Second)), "seed %d: %s goes before %s", seed, v.Name, evicted[0].Name)
	}
	return true
}

// forMetadata returns the volumes of a group that are evicted for its LVM metadata area, and whether the removal of
// others frees some of it.
func (o oracle) forMetadata(got eviction.Result, group volume.Group) (evicted []inventory.Volume, others bool) {
	for _, e := range got.Evictions {
		switch {
		case e.Volume.Group != group:
		case e.Reason == eviction.ReasonLVMMetadata:
			evicted = append(evicted, e.Volume)
		default:
			others = true
		}
	}
	for _, v := range o.view.Volumes {
		others = others || v.Group == group && o.doomed(v)
	}
	return evicted, others
}

// metadataCandidates returns the volumes of a group and its thin pool that may be evicted for its LVM metadata area.
func (o oracle) metadataCandidates(group volume.PoolName) (out []inventory.Volume) {
	if o.stalled(group) || o.stalled(group+"/thin") {
		return nil
	}
	known := map[volume.PoolName]bool{}
	for _, p := range o.view.Pools {
		known[p.Name] = !p.ContentUnknown()
	}
	for _, v := range o.view.Volumes {
		if v.Group == group.Group() && known[v.Pool()] && o.candidate(v) {
			out = append(out, v)
		}
	}
	return out
}
