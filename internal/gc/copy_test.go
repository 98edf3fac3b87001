package gc_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/gc"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func copyOf(source volume.Name) func(*gc.Claim) {
	return func(c *gc.Claim) { c.CloneOf = source }
}

// While a copy of a volume is promised and not made, the volume stays as it is.
func TestJudgeKeepsWhatIsToBeCopied(t *testing.T) {
	gone := phase(corev1.VolumeReleased)
	for name, tt := range map[string]struct {
		source volume.State // empty: it is not there
		copy   volume.State // empty: it is not there
		claim  []func(*gc.Claim)
		action gc.Action
		made   bool // it is to be made now
	}{
		"not made":                          {volume.Ready, "", nil, gc.ActionWait, true},
		"not made, handed out just now":     {volume.Creating, "", nil, gc.ActionWait, true},
		"half made":                         {volume.Ready, volume.Creating, nil, gc.ActionWait, true},
		"no pod has it yet":                 {volume.Ready, "", []func(*gc.Claim){phase(corev1.VolumePending)}, gc.ActionWait, true},
		"deleted, and guarded":              {volume.Ready, "", []func(*gc.Claim){deleting}, gc.ActionWait, true},
		"made":                              {volume.Ready, volume.Ready, nil, gc.ActionRelease, false},
		"made and given up":                 {volume.Ready, volume.Unreferenced, []func(*gc.Claim){gone}, gc.ActionRelease, false},
		"given up before it was made":       {volume.Ready, "", []func(*gc.Claim){gone}, gc.ActionRelease, false},
		"given up half made":                {volume.Ready, volume.Creating, []func(*gc.Claim){gone}, gc.ActionRelease, false},
		"given up, and its object kept":     {volume.Ready, "", []func(*gc.Claim){gone, retain}, gc.ActionRelease, false},
		"of another volume":                 {volume.Ready, "", []func(*gc.Claim){copyOf("other")}, gc.ActionRelease, true},
		"of another cluster":                {volume.Ready, "", []func(*gc.Claim){cluster2}, gc.ActionRelease, false},
		"of another group of that name":     {volume.Ready, "", []func(*gc.Claim){otherGroup}, gc.ActionRelease, false},
		"in another group":                  {volume.Ready, "", []func(*gc.Claim){func(c *gc.Claim) { c.Group = "away" }}, gc.ActionRelease, false},
		"the source is gone":                {"", "", nil, gc.ActionRelease, true},
		"the source is unreferenced":        {volume.Unreferenced, "", nil, gc.ActionRelease, true},
		"the source is retained, by a hand": {volume.Retained, "", nil, gc.ActionRelease, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			s.claim("source", 10, gone)
			s.claim("copy", 10, append([]func(*gc.Claim){copyOf("source")}, tt.claim...)...)
			if tt.source != "" {
				s.volume("source", tt.source, 10)
			}
			if tt.copy != "" {
				s.volume("copy", tt.copy, 10)
			}
			verdicts := gc.Judge(s.view)
			i := slices.IndexFunc(verdicts, func(v gc.Verdict) bool { return v.Claim.PV == "source" })
			require.GreaterOrEqual(t, i, 0)
			require.Equal(t, tt.action, verdicts[i].Action)
			if tt.action == gc.ActionWait {
				require.Empty(t, verdicts[i].To)
				require.Contains(t, verdicts[i].Why, "PersistentVolume copy is to begin as a copy of it")
			}
			var made []string
			for _, c := range gc.Copies(s.view) {
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

// What cannot be told is kept, and nothing is made where a disk is missing.
func TestCopiesInDoubt(t *testing.T) {
	s := newScene()
	s.claim("source", 10, phase(corev1.VolumeReleased))
	s.volume("source", volume.Ready, 10)
	s.claim("copy", 10, copyOf("source"))
	s.volume("copy", "", 10, func(v *node.Volume) { v.Cluster, v.Problem = "", "two states" })
	require.Empty(t, gc.Copies(s.view))
	for _, v := range gc.Judge(s.view) {
		require.NotEqual(t, gc.ActionRelease, v.Action)
	}
	s.view.Volumes = s.view.Volumes[:2]
	require.Len(t, gc.Copies(s.view), 1)
	s.group("flexlvm").Missing = 1
	require.Empty(t, gc.Copies(s.view))
	s.view.Cluster = ""
	require.Empty(t, gc.Copies(s.view))
}

// What is to be copied is not evicted, unreferenced or orphaned as it may be.
func TestPlanKeepsWhatIsToBeCopied(t *testing.T) {
	for _, state := range []volume.State{volume.Unreferenced, volume.Ready} {
		s := newScene()
		s.policy.EvictOrphans, s.policy.OrphanAge = true, 0
		s.volume("source", state, 95, immediate)
		s.claim("copy", 10, copyOf("source"))
		require.Empty(t, s.plan().Evictions, state)
		s.volume("copy", volume.Ready, 0)
		require.Len(t, s.plan().Evictions, 1, "made: %s", state)
	}
}

func pvCopyOf(source string) func(*corev1.PersistentVolume) {
	return func(o *corev1.PersistentVolume) {
		o.Spec.FlexVolume.Options[volume.OptionLayout] = "thin"
		o.Spec.FlexVolume.Options[volume.OptionThinPool] = "pool"
		o.Spec.FlexVolume.Options[volume.OptionCloneOf] = source
	}
}

// The copy is taken as soon as its PersistentVolume is there, and its source goes
// only then, whenever its user deletes it.
func TestCopyIsTakenBeforeItsSourceGoes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("source", 10)
	r.engine.with(func() {
		r.engine.pools = append(r.engine.pools, node.Pool{
			Name: "flexlvm/pool", UUID: "pool", Size: volume.TiB, Free: volume.TiB, Extent: 4 * volume.MiB,
			Thin: &node.ThinPool{GroupUUID: sceneUUID, Known: true, Metadata: volume.GiB},
		})
		r.engine.fault = func(call string) error {
			if strings.HasPrefix(call, "clone") {
				return errors.New("the pool is full")
			}
			return nil
		}
	})
	r.start()
	r.rounds(1)
	r.api.put(object("copy", 10, pvCopyOf("source")))
	released := r.api.volume("source")
	pvReleased(released)
	r.api.put(released)
	r.eventually(func() bool { return len(r.engine.called("clone flexlvm/copy of source")) == 1 }, "no copy is tried")
	r.eventually(func() bool { return len(r.api.told("VolumeNotCopied")) == 1 }, "no event")
	require.Contains(t, r.api.told("VolumeNotCopied")[0], "PersistentVolume/copy: the pool is full; it is tried again")
	r.rounds(3)
	require.Len(t, r.engine.called("clone"), 1, "tried again too early: the clock stands")
	require.Contains(t, r.engine.names(), "source ready")
	require.Contains(t, r.api.volume("source").Finalizers, pv.Finalizer)
	require.Empty(t, r.api.told("VolumeNeedsAttention"), "nobody need do anything")

	r.engine.with(func() { r.engine.fault = nil })
	r.clock.pass(soon)
	r.eventually(func() bool { return r.api.volume("source") == nil }, "the source stays")
	require.Contains(t, r.engine.names(), "source unreferenced")
	require.Contains(t, r.engine.names(), "copy ready")
	r.eventually(func() bool { return len(r.api.told("VolumeCopied")) == 1 }, "no event")
	r.rounds(2)
	require.Len(t, r.engine.called("clone"), 2)
}

// A dry run makes nothing.
func TestCopyInADryRun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.config.DryRun = true
	r.claimed("source", 10)
	r.api.put(object("copy", 10, pvCopyOf("source")))
	r.start()
	r.rounds(3)
	require.Empty(t, r.engine.called("clone"))
}
