package eviction_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A directory pool is accounted for separately, like a volume group: a promise there evicts unreferenced volumes of
// the pool, the least recently used first, and none of its group.
func TestDirectoryPool(t *testing.T) {
	const name = volume.PoolName("flexlvm:small")
	s := evictiontest.New()
	s.Pool(string(name), 10)
	s.PoolNamed(name).UUID, s.PoolNamed(name).Extent = "of-the-pool", volume.Block
	s.PoolNamed(name).Directories = &inventory.DirectoryPool{GroupUUID: evictiontest.GroupUUID, Known: true}
	shape := volume.Shape{Layout: volume.Directory, DirectoryPool: "small"}
	pool := func(v *inventory.Volume) { v.Shape = shape }
	of := func(c *persistentvolume.Volume) { c.Shape = shape }
	s.Volume("old", volume.Unreferenced, 3, pool, evictiontest.LastUsed(9))
	s.Volume("young", volume.Unreferenced, 3, pool)
	s.Volume("elsewhere", volume.Unreferenced, 3, evictiontest.LastUsed(20))
	s.Volume("used", volume.Ready, 2, pool)
	s.PersistentVolume("used", 2, of)
	s.PersistentVolume("new", 4, of, evictiontest.Phase(corev1.VolumeBound))
	s.Policy.HighPercent = 100
	result := s.Plan()
	require.Equal(t, []string{"Promised old"}, evictiontest.Evicted(result))
	require.Len(t, result.Pools, 2)
	require.Equal(t, name, result.Pools[1].Pool.Name)
	require.Equal(t, 10*volume.GiB, result.Pools[1].Allocatable)
	require.Empty(t, result.Pools[1].Closed)

	s.PersistentVolume("huge", 40, of, evictiontest.Phase(corev1.VolumeBound))
	require.Contains(t, s.Plan().Pools[1].ShortfallMessage, "enlarge directory pool flexlvm:small (`flexlvm directories create --group flexlvm --pool small --size SIZE`)")

	s.PoolNamed(name).Directories.Unfit = "files were taken out of their quotas"
	s.PoolNamed(name).MetadataSize, s.PoolNamed(name).MetadataFree = 100, 0 // of LVM, for the group
	require.Equal(t, "files were taken out of their quotas", s.Plan().Pools[1].Closed)
}

// While a directory pool cannot be read or is not among the node's pools, a missing volume there does not count as
// never created, and nothing is evicted or offered.
func TestDirectoryPoolThatIsNotSeen(t *testing.T) {
	const name = volume.PoolName("flexlvm:small")
	for what, spoil := range map[string]func(s *evictiontest.Scene){
		"cannot be read, so its state is unknown": func(s *evictiontest.Scene) { s.PoolNamed(name).Directories.Known = false },
		"is not on this node":                     func(s *evictiontest.Scene) { s.View.Pools = s.View.Pools[:1] },
	} {
		s := evictiontest.New()
		s.Pool(string(name), 10)
		s.PoolNamed(name).UUID, s.PoolNamed(name).Extent = "of-the-pool", volume.Block
		s.PoolNamed(name).Directories = &inventory.DirectoryPool{GroupUUID: evictiontest.GroupUUID, Known: true}
		s.PersistentVolume("gone", 2, evictiontest.Deleting, evictiontest.Phase(corev1.VolumeReleased), func(c *persistentvolume.Volume) {
			c.Shape = volume.Shape{Layout: volume.Directory, DirectoryPool: "small"}
		})
		verdicts := eviction.Judge(s.View)
		require.Len(t, verdicts, 1)
		require.Equal(t, eviction.ActionRelease, verdicts[0].Action, verdicts[0].Why)
		spoil(s)
		verdicts = eviction.Judge(s.View)
		require.Len(t, verdicts, 1)
		require.Equal(t, eviction.ActionReport, verdicts[0].Action)
		require.Contains(t, verdicts[0].Why, what)
		require.Empty(t, evictiontest.Evicted(s.Plan()))
	}
}

// A missing directory counts as gone only if its pool is healthy.
func TestDirectoryThatIsGone(t *testing.T) {
	const name = volume.PoolName("flexlvm:small")
	for unfit, told := range map[string]int{"": 1, "xfs_repair has moved files": 0} {
		s := evictiontest.New()
		s.Pool(string(name), 10)
		s.PoolNamed(name).UUID, s.PoolNamed(name).Extent = "of-the-pool", volume.Block
		s.PoolNamed(name).Directories = &inventory.DirectoryPool{GroupUUID: evictiontest.GroupUUID, Known: true, Unfit: unfit}
		s.PersistentVolume("pvc", 1, func(c *persistentvolume.Volume) {
			c.Shape = volume.Shape{Layout: volume.Directory, DirectoryPool: "small"}
		})
		lose(s)
		verdicts := eviction.Judge(s.View)
		require.Len(t, verdicts, told, "%v", verdicts)
		for _, v := range verdicts {
			require.Contains(t, v.Why, "is gone, so no pod can mount it; delete claim db/data-pvc and restore the data from a backup")
			require.NotContains(t, v.Why, "/etc/lvm", "LVM does not know directories")
		}
	}
}
