package eviction_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const fsUUID = "0f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11"

func wantsBack(c *persistentvolume.Volume) {
	c.Undelete, c.FS, c.ClaimNamespace, c.Phase = true, fsUUID, "db", corev1.VolumeAvailable
}

// A volume is not evicted once its undeletion is requested.
func TestUndeletes(t *testing.T) {
	s := evictiontest.New()
	s.Volume("data", volume.Unreferenced, 90, func(v *inventory.Volume) { v.FS = fsUUID })
	require.Len(t, s.Plan().Evictions, 1)
	s.PersistentVolume("data", 90, wantsBack)
	require.Empty(t, s.Plan().Evictions)
	got := eviction.Undeletes(s.View)
	require.Len(t, got, 1)
	require.Equal(t, eviction.Undelete{PersistentVolume: s.View.PersistentVolumes[1], State: volume.Unreferenced, UUID: "uuid-data"}, got[0])
	require.Empty(t, eviction.Judge(s.View), "nobody need do anything")

	s.PersistentVolume("twice", 90, wantsBack, func(c *persistentvolume.Volume) { c.Volume = "data" })
	require.Contains(t, eviction.Undeletes(s.View)[0].Why, "another PersistentVolume names volume flexlvm/data too")
}

// A volume that was never finished cannot be undeleted.
func TestUndeleteOfWhatWasNeverFinished(t *testing.T) {
	for name, unfinished := range map[string]func(*inventory.Volume){
		"creating":      func(v *inventory.Volume) { v.State = volume.Creating },
		"half a copy":   func(v *inventory.Volume) { v.CloneOfFS = "another" },
		"partly zeroed": func(v *inventory.Volume) { v.PartlyZeroed = true },
	} {
		s := evictiontest.New()
		s.Volume("data", volume.Unreferenced, 90, func(v *inventory.Volume) { v.FS = fsUUID }, unfinished)
		s.PersistentVolume("data", 90, wantsBack)
		require.Contains(t, eviction.Undeletes(s.View)[0].Why, "volume flexlvm/data was never finished", name)
	}
}

// A volume that is not in the inventory does not count as evicted if it may be in a directory pool that cannot be
// read, in a directory pool's lost+found, or in a missing group.
func TestWhatIsNotSeenIsNotCalledEvicted(t *testing.T) {
	const name = volume.PoolName("flexlvm:small")
	for what, tt := range map[string]struct {
		spoil   func(*evictiontest.Scene)
		evicted bool
	}{
		"cannot be read, so its state is unknown": {spoil: func(s *evictiontest.Scene) { s.PoolNamed(name).Directories.Known = false }},
		"is not on this node":                     {spoil: func(s *evictiontest.Scene) { s.View.Pools = s.View.Pools[1:] }},
		"xfs_repair has moved files":              {spoil: func(s *evictiontest.Scene) { s.PoolNamed(name).Directories.Unfit = "xfs_repair has moved files" }},
		"its data is lost":                        {spoil: func(*evictiontest.Scene) {}, evicted: true},
		"no empty volume replaces it":             {spoil: func(s *evictiontest.Scene) { s.Volume("data", volume.Doomed, 1) }, evicted: true},
	} {
		s := evictiontest.New()
		s.Pool(string(name), 10)
		s.PoolNamed(name).Directories = &inventory.DirectoryPool{GroupUUID: evictiontest.GroupUUID, Known: true}
		s.PersistentVolume("data", 2, wantsBack, func(c *persistentvolume.Volume) {
			c.Shape = volume.Shape{Layout: volume.Directory, DirectoryPool: "small"}
		})
		tt.spoil(s)
		got := eviction.Undeletes(s.View)[0]
		require.Equal(t, tt.evicted, got.Evicted, got.Why)
		require.Contains(t, got.Why, what)
		require.Equal(t, tt.evicted, strings.Contains(got.Why, "evicted"), got.Why)

		_, err := eviction.AdmitRequest(s.View, eviction.Request{Time: s.View.Now, Group: "flexlvm", Name: "data", FS: fsUUID, To: volume.Retained})
		require.ErrorContains(t, err, "flexlvm/data")
		require.Equal(t, tt.evicted, strings.Contains(err.Error(), "evicted"), err)
	}
}

// A PersistentVolume to undelete a volume that is gone gets no room promised, and does not release another volume of
// the same name.
func TestNothingTakesThePlaceOfWhatIsGone(t *testing.T) {
	s := evictiontest.New()
	s.Volume("other", volume.Unreferenced, 60)
	s.PersistentVolume("data", 90, wantsBack)
	plan := s.Plan()
	require.Zero(t, plan.Pools[0].Promised)
	require.Empty(t, plan.Evictions)
	require.True(t, eviction.Undeletes(s.View)[0].Evicted)

	s = evictiontest.New()
	s.Volume("data", volume.Ready, 10, func(v *inventory.Volume) { v.FS = "another" })
	s.PersistentVolume("data", 10, wantsBack, func(c *persistentvolume.Volume) { c.Phase = corev1.VolumeReleased })
	verdicts := eviction.Judge(s.View)
	require.Len(t, verdicts, 1)
	require.Equal(t, eviction.ActionReport, verdicts[0].Action)
	require.Contains(t, verdicts[0].Why, "it was created for the file system "+fsUUID)
}

// The advice to bring a volume back works for every volume, and is only given where the command does not refuse.
func TestAdviceToBringAVolumeBack(t *testing.T) {
	noManifests, unfinished := "bring it back with `flexlvm volumes undelete pvc --no-manifests`", "is an unfinished copy of another volume, so there is nothing to restore"
	for name, tt := range map[string]struct {
		change             func(*inventory.Volume)
		wanted, ofAnOrphan string
	}{
		"encrypted": {func(v *inventory.Volume) { v.Encrypted = true }, noManifests, "; `flexlvm volumes undelete pvc --door csi --secret NAMESPACE/NAME --dry-run` prints"},
		"raw":       {func(v *inventory.Volume) { v.FSType = volume.Raw }, noManifests, "; `flexlvm volumes undelete pvc --door csi --dry-run` prints"},
		"replica":   {func(v *inventory.Volume) { v.Kind = volume.Dataset }, noManifests, "; `flexlvm volumes forget pvc` gives it up"},
		"copy":      {func(v *inventory.Volume) { v.CloneOfFS = "x" }, unfinished, "; `flexlvm volumes forget pvc` gives it up"},
	} {
		t.Run(name, func(t *testing.T) {
			s := evictiontest.New()
			s.PersistentVolume("pvc", 10)
			s.Volume("pvc", volume.Unreferenced, 10, tt.change)
			verdicts := eviction.Judge(s.View)
			require.Len(t, verdicts, 1)
			require.Contains(t, verdicts[0].Why, tt.wanted)

			s = evictiontest.New()
			s.Volume("pvc", volume.Ready, 10, tt.change)
			require.Contains(t, s.Plan().Orphans[0].Message, tt.ofAnOrphan)
		})
	}
	s := evictiontest.New()
	s.Volume("pvc", volume.Creating, 10)
	require.NotContains(t, s.Plan().Orphans[0].Message, "undelete", "nothing was deleted")
}
