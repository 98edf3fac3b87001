package nodeagent

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Orphans stay on the list while their volume group is not seen, so that nobody gives up the node that has them.
func TestOrphansOfAGroupThatIsNotSeen(t *testing.T) {
	round := func(was flexlvmv1.NodeStorageStatus, in inventory.Inventory, orphans ...string) flexlvmv1.NodeStorageStatus {
		f := observation{inventory: in}
		for _, name := range orphans {
			v := inventory.Volume{Group: "g", Name: volume.Name(name), FS: "fs-" + name, Shape: volume.Shape{Layout: volume.Linear}}
			if name == "files" {
				v.Shape = volume.Shape{Layout: volume.Directory, DirectoryPool: "directories"}
			}
			f.inventory.Volumes = append(f.inventory.Volumes, v)
			f.result.Orphans = append(f.result.Orphans, eviction.Orphan{Volume: v})
		}
		return statusOf(was, f, report{origin: unknown, whyNotCreated: func(string) string { return "" }})
	}
	names := func(s flexlvmv1.NodeStorageStatus) (out []string) {
		for _, o := range s.Orphans {
			out = append(out, o.Name)
		}
		return out
	}
	seen := inventory.Inventory{Pools: []inventory.Pool{{Name: "g"}, {Name: "other"}}}
	late := inventory.Inventory{Pools: []inventory.Pool{{Name: "other"}}}

	was := round(flexlvmv1.NodeStorageStatus{}, seen, "a", "b")
	require.Empty(t, was.Orphans[0].Problem)
	is := was
	for range 3 {
		is = round(is, late)
		require.EqualValues(t, 2, is.OrphanCount)
		require.Equal(t, []string{"a", "b"}, names(is))
		require.Equal(t, "its volume group is not seen at present, or its pool cannot be read", is.Orphans[0].Problem)
	}
	require.Equal(t, is.Orphans, round(is, inventory.Inventory{}).Orphans, "no group is seen")

	back := round(is, seen, "a")
	require.EqualValues(t, 1, back.OrphanCount, "what the group lacks is gone")
	require.Equal(t, []string{"a"}, names(back))
	require.Empty(t, back.Orphans[0].Problem)

	renamed := late
	renamed.Volumes = []inventory.Volume{{Group: "other", Name: "a", FS: "fs-a"}}
	require.Equal(t, []string{"b"}, names(round(is, renamed)))

	unreadable := inventory.Inventory{Pools: []inventory.Pool{{Name: "g"}, {Name: "g:directories", Directories: &inventory.DirectoryPool{}}}}
	is = round(flexlvmv1.NodeStorageStatus{}, seen, "a", "b", "files")
	for range 3 {
		is = round(is, unreadable, "b")
		require.EqualValues(t, 2, is.OrphanCount)
		require.Equal(t, []string{"b", "files"}, names(is), "what LVM does not list any more is gone, unless it is in the directory pool")
	}
	require.Equal(t, []string{"b"}, names(round(is, seen, "b")))
}

// However many orphans are seen, the unseen ones stay on the list, which has a limit.
func TestOrphansAreBoundedBesideAGroupThatIsNotSeen(t *testing.T) {
	was := flexlvmv1.NodeStorageStatus{}
	for i := range flexlvmv1.MaxOrphans {
		was.Orphans = append(was.Orphans, flexlvmv1.Orphan{Pool: "late", Name: fmt.Sprintf("v-%d", i), Problem: "much"})
	}
	f := observation{inventory: inventory.Inventory{Pools: []inventory.Pool{{Name: "g"}}}}
	for i := range 60 {
		f.result.Orphans = append(f.result.Orphans, eviction.Orphan{Volume: inventory.Volume{Group: "g", Name: volume.Name(fmt.Sprintf("o-%d", i))}})
	}
	for _, unseen := range [][]flexlvmv1.Orphan{was.Orphans, was.Orphans[:10]} {
		was.Orphans = unseen
		is := statusOf(was, f, report{origin: unknown, whyNotCreated: func(string) string { return "" }})
		require.EqualValues(t, 60+len(unseen), is.OrphanCount)
		require.Len(t, is.Orphans, flexlvmv1.MaxOrphans)
		require.Equal(t, unseen, is.Orphans[flexlvmv1.MaxOrphans-len(unseen):])
	}
}
