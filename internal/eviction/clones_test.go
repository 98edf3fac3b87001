package eviction_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// While a copy of a volume is promised but unfinished, the volume is not released.
func TestJudgeKeepsWhatIsToBeCopied(t *testing.T) {
	gone := evictiontest.Phase(corev1.VolumeReleased)
	for name, tt := range map[string]struct {
		source volume.State // empty: no volume
		copy   volume.State // empty: no volume
		claim  []func(*persistentvolume.Volume)
		action eviction.Action
		made   bool // the copy is to be created now
	}{
		"not made":                          {volume.Ready, "", nil, eviction.ActionWait, true},
		"not made, handed out just now":     {volume.Creating, "", nil, eviction.ActionWait, true},
		"half made":                         {volume.Ready, volume.Creating, nil, eviction.ActionWait, true},
		"no pod has it yet":                 {volume.Ready, "", []func(*persistentvolume.Volume){evictiontest.Phase(corev1.VolumePending)}, eviction.ActionWait, true},
		"deleted, and guarded":              {volume.Ready, "", []func(*persistentvolume.Volume){evictiontest.Deleting}, eviction.ActionWait, true},
		"made":                              {volume.Ready, volume.Ready, nil, eviction.ActionRelease, false},
		"made and given up":                 {volume.Ready, volume.Unreferenced, []func(*persistentvolume.Volume){gone}, eviction.ActionRelease, false},
		"given up before it was made":       {volume.Ready, "", []func(*persistentvolume.Volume){gone}, eviction.ActionRelease, false},
		"given up half made":                {volume.Ready, volume.Creating, []func(*persistentvolume.Volume){gone}, eviction.ActionRelease, false},
		"given up, and its object kept":     {volume.Ready, "", []func(*persistentvolume.Volume){gone, evictiontest.Retain}, eviction.ActionRelease, false},
		"its object is being made anew":     {volume.Ready, "", []func(*persistentvolume.Volume){gone, evictiontest.Retain, func(c *persistentvolume.Volume) { c.Placeholder = true }}, eviction.ActionWait, false},
		"of another volume":                 {volume.Ready, "", []func(*persistentvolume.Volume){evictiontest.CopyOf("other")}, eviction.ActionRelease, true},
		"of another cluster":                {volume.Ready, "", []func(*persistentvolume.Volume){evictiontest.OtherCluster}, eviction.ActionRelease, false},
		"of another group of that name":     {volume.Ready, "", []func(*persistentvolume.Volume){evictiontest.OtherGroup}, eviction.ActionRelease, false},
		"in another group":                  {volume.Ready, "", []func(*persistentvolume.Volume){func(c *persistentvolume.Volume) { c.Group = "away" }}, eviction.ActionRelease, false},
		"the source is gone":                {"", "", nil, eviction.ActionRelease, true},
		"the source is unreferenced":        {volume.Unreferenced, "", nil, eviction.ActionRelease, true},
		"the source is retained, by a hand": {volume.Retained, "", nil, eviction.ActionRelease, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := evictiontest.New()
			s.PersistentVolume("source", 10, gone)
			s.PersistentVolume("copy", 10, append([]func(*persistentvolume.Volume){evictiontest.CopyOf("source")}, tt.claim...)...)
			if tt.source != "" {
				s.Volume("source", tt.source, 10)
			}
			if tt.copy != "" {
				s.Volume("copy", tt.copy, 10)
			}
			verdicts := eviction.Judge(s.View)
			i := slices.IndexFunc(verdicts, func(v eviction.Verdict) bool { return v.PersistentVolume.PV == "source" })
			require.GreaterOrEqual(t, i, 0)
			require.Equal(t, tt.action, verdicts[i].Action)
			if tt.action == eviction.ActionWait {
				require.Empty(t, verdicts[i].To)
				require.Contains(t, verdicts[i].Why, "PersistentVolume copy is to become a copy of it")
			}
			var made []string
			for _, c := range eviction.ClonesToCreate(s.View) {
				made = append(made, c.PV)
			}
			if tt.made {
				require.Equal(t, []string{"copy"}, made)
			} else {
				require.Empty(t, made)
			}
		})
	}
}

// The daemon creates a full copy of an encrypted volume until it is complete. The first mount, which brings the key,
// does the rest.
func TestClonesOfEncryptedVolumes(t *testing.T) {
	for name, tt := range map[string]struct {
		shape volume.Shape
		fill  volume.Fill
		made  bool
	}{
		"thin":               {volume.Shape{Layout: volume.Thin, ThinPool: "pool"}, "", false},
		"full, not begun":    {volume.Shape{Layout: volume.Linear}, "", true},
		"full, under way":    {volume.Shape{Layout: volume.Linear}, volume.FillCopying, true},
		"full, and whole":    {volume.Shape{Layout: volume.Linear}, volume.FillCopied, false},
		"full, half its own": {volume.Shape{Layout: volume.Linear}, "", true},
	} {
		s := evictiontest.New()
		s.PersistentVolume("copy", 10, evictiontest.CopyOf("source"), func(c *persistentvolume.Volume) { c.Encrypted, c.Shape = true, tt.shape })
		s.Volume("copy", volume.Creating, 10, func(v *inventory.Volume) { v.Fill = tt.fill })
		require.Equal(t, tt.made, len(eviction.ClonesToCreate(s.View)) == 1, name)
	}
}

// In doubt the source is kept. Nothing is created while a device is missing.
func TestClonesInDoubt(t *testing.T) {
	s := evictiontest.New()
	s.PersistentVolume("source", 10, evictiontest.Phase(corev1.VolumeReleased))
	s.Volume("source", volume.Ready, 10)
	s.PersistentVolume("copy", 10, evictiontest.CopyOf("source"))
	s.Volume("copy", "", 10, func(v *inventory.Volume) { v.Cluster, v.Problem = "", "two states" })
	require.Empty(t, eviction.ClonesToCreate(s.View))
	for _, v := range eviction.Judge(s.View) {
		require.NotEqual(t, eviction.ActionRelease, v.Action)
	}
	s.View.Volumes = s.View.Volumes[:2]
	require.Len(t, eviction.ClonesToCreate(s.View), 1)
	s.PoolNamed("flexlvm").Missing = 1
	require.Empty(t, eviction.ClonesToCreate(s.View))
	s.View.Cluster = ""
	require.Empty(t, eviction.ClonesToCreate(s.View))
}

// The source of a copy is not evicted, neither as an unreferenced volume nor as an orphan.
func TestPlanKeepsWhatIsToBeCopied(t *testing.T) {
	for _, state := range []volume.State{volume.Unreferenced, volume.Ready} {
		s := evictiontest.New()
		s.Policy.EvictOrphans, s.Policy.OrphanAge = true, 0
		s.Volume("source", state, 95, evictiontest.Immediate)
		s.PersistentVolume("copy", 10, evictiontest.CopyOf("source"))
		require.Empty(t, s.Plan().Evictions, state)
		s.Volume("copy", volume.Ready, 0)
		require.Len(t, s.Plan().Evictions, 1, "made: %s", state)
	}
}

// The source of a copy is gone if it does not exist and no PersistentVolume can have it created. Any doubt means that
// it is not.
func TestLostSources(t *testing.T) {
	const none, gone = false, true
	source := func(change ...func(*persistentvolume.Volume)) func(*evictiontest.Scene) {
		return func(s *evictiontest.Scene) { s.PersistentVolume("source", 10, change...) }
	}
	for name, tt := range map[string]struct {
		change func(*evictiontest.Scene)
		lost   bool
	}{
		"its PersistentVolume gone":     {func(*evictiontest.Scene) {}, gone},
		"its PersistentVolume released": {source(evictiontest.Phase(corev1.VolumeReleased)), gone},
		"its snapshot deleted":          {source(takenSnapshot, evictiontest.Retain, evictiontest.Phase(corev1.VolumeAvailable), evictiontest.Deleting), gone},
		"not created yet":               {source(), none},
		"released and retained":         {source(evictiontest.Phase(corev1.VolumeReleased), evictiontest.Retain), none},
		"wanted, in a group of the former name": {
			source(func(c *persistentvolume.Volume) { c.Group = "former" }), none},
		"there":                {func(s *evictiontest.Scene) { s.Volume("source", volume.Unreferenced, 10) }, none},
		"perhaps unreadable":   {func(s *evictiontest.Scene) { s.View.Unreadable = []string{"source"} }, none},
		"in a partial group":   {func(s *evictiontest.Scene) { s.PoolNamed("flexlvm").Missing = 1 }, none},
		"in a group not there": {func(s *evictiontest.Scene) { s.View.Pools = nil }, none},
	} {
		t.Run(name, func(t *testing.T) {
			s := evictiontest.New()
			s.PersistentVolume("copy", 60, evictiontest.CopyOf("source"))
			tt.change(s)
			lost := eviction.LostSources(s.View)
			if !tt.lost {
				require.Empty(t, lost)
				return
			}
			require.Len(t, lost, 1)
			require.Equal(t, "flexlvm/source", lost[0].String())
		})
	}
}

// No room is made for a copy whose source is gone: it can never be created. The copy does not count as starting either.
func TestPlanMakesNoRoomForACopyOfWhatIsGone(t *testing.T) {
	for name, of := range map[string]func(*persistentvolume.Volume){
		"snapshot": takenSnapshot, "claim": func(*persistentvolume.Volume) {},
	} {
		t.Run(name, func(t *testing.T) {
			s := evictiontest.New()
			s.Volume("given-up", volume.Unreferenced, 70)
			s.PersistentVolume("source", 10, of)
			lose(s)
			s.PersistentVolume("copy", 60, evictiontest.CopyOf("source"))
			require.Empty(t, s.Plan().Evictions)
			var starts eviction.Starts
			require.Zero(t, starts.Until(s.View, nil))
			s.PersistentVolume("other", 60)
			require.Equal(t, []string{"Promised given-up"}, evictiontest.Evicted(s.Plan()))
		})
	}
}
