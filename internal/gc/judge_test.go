package gc_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/gc"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func phase(p corev1.PersistentVolumePhase) func(*gc.Claim) {
	return func(c *gc.Claim) { c.Phase = p }
}

func retain(c *gc.Claim)     { c.ReclaimPolicy = corev1.PersistentVolumeReclaimRetain }
func deleting(c *gc.Claim)   { c.Deleting = true }
func noCluster(c *gc.Claim)  { c.Cluster = "" }
func cluster2(c *gc.Claim)   { c.Cluster = "another" }
func otherGroup(c *gc.Claim) { c.GroupUUID = "another" }

func TestJudge(t *testing.T) {
	type changes = []func(*gc.Claim)
	const (
		bound, released, failed   = corev1.VolumeBound, corev1.VolumeReleased, corev1.VolumeFailed
		pending, available        = corev1.VolumePending, corev1.VolumeAvailable
		ready, unreferenced, kept = volume.Ready, volume.Unreferenced, volume.Retained
		release, report           = gc.ActionRelease, gc.ActionReport
		made, neverMade           = true, false
		nothing                   = gc.Action("")
		nowhere                   = volume.State("")
	)
	for name, tt := range map[string]struct {
		claim  changes
		made   bool
		action gc.Action
		to     volume.State
		why    string
	}{
		"bound":                        {changes{phase(bound)}, made, nothing, nowhere, ""},
		"pending":                      {changes{phase(pending)}, neverMade, nothing, nowhere, ""},
		"available":                    {changes{phase(available)}, neverMade, nothing, nowhere, ""},
		"available, a volume is there": {changes{phase(available)}, made, nothing, nowhere, ""},
		"released, Delete": {changes{phase(released)}, made, release, unreferenced,
			"PersistentVolume pvc was released: claim db/data-pvc is gone; its reclaim policy is Delete, so volume flexlvm/pvc may be taken back"},
		"released, Delete, never made": {changes{phase(released)}, neverMade, release, unreferenced, "is gone"},
		"failed, Delete":               {changes{phase(failed)}, made, release, unreferenced, "has failed to be reclaimed"},
		"released, Retain":             {changes{phase(released), retain}, made, nothing, nowhere, ""},
		"failed, Retain":               {changes{phase(failed), retain}, made, nothing, nowhere, ""},

		"deleted, bound":            {changes{phase(bound), deleting}, made, nothing, nowhere, ""},
		"deleted, bound, Retain":    {changes{phase(bound), deleting, retain}, made, nothing, nowhere, ""},
		"deleted, released, Delete": {changes{phase(released), deleting}, made, release, unreferenced, "PersistentVolume pvc was deleted and no claim is bound to it"},
		"deleted, released, Retain": {changes{phase(released), deleting, retain}, made, release, kept,
			"the reclaim policy is Retain, so volume flexlvm/pvc is kept until a person gives it up (`flexlvm volumes forget pvc`)"},
		"deleted, available, Delete": {changes{phase(available), deleting}, neverMade, release, unreferenced, "was deleted"},
		"deleted, pending, Retain":   {changes{phase(pending), deleting, retain}, made, release, kept, "was deleted"},

		"another cluster's, bound":    {changes{cluster2}, made, report, nowhere, `is of cluster "another"`},
		"another cluster's, released": {changes{cluster2, phase(released)}, made, report, nowhere, `is of cluster "another"`},
		"another cluster's, deleted":  {changes{cluster2, phase(released), deleting}, made, report, nowhere, `remove the finalizer flexlvm.io/volume`},
		"no cluster, bound":           {changes{noCluster}, made, nothing, nowhere, ""},
		"no cluster, released":        {changes{noCluster, phase(released)}, made, report, nowhere, "the option clusterUID is missing"},
		"no cluster, kept":            {changes{noCluster, phase(released), retain}, made, nothing, nowhere, ""},
		"group replaced, bound":       {changes{otherGroup}, made, report, nowhere, "the volume is lost and claim db/data-pvc must be deleted"},
		"group replaced, released":    {changes{otherGroup, phase(released)}, made, report, nowhere, "it was made in volume group flexlvm with UUID another"},
		"group replaced, volume lost": {changes{otherGroup, phase(released)}, neverMade, release, unreferenced, "is gone"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			s.claim("pvc", 10, tt.claim...)
			if tt.made {
				s.volume("pvc", ready, 10)
			}
			got := gc.Judge(s.view)
			if tt.action == nothing {
				require.Empty(t, got)
				return
			}
			require.Len(t, got, 1)
			require.Equal(t, tt.action, got[0].Action)
			require.Equal(t, tt.to, got[0].To)
			require.Contains(t, got[0].Why, tt.why)
			require.Equal(t, s.view.Claims[1], got[0].Claim)
		})
	}
}

// What the node holds can stand in the way of what the API says.
func TestJudgeAgainstTheNode(t *testing.T) {
	gone := phase(corev1.VolumeReleased)
	for name, tt := range map[string]struct {
		scene  func(*scene)
		action gc.Action
		to     volume.State
		why    string
	}{
		"unreferenced already": {
			func(s *scene) { s.claim("pvc", 10, gone); s.volume("pvc", volume.Unreferenced, 10) },
			gc.ActionRelease, volume.Unreferenced, "volume flexlvm/pvc is unreferenced already",
		},
		"retained by a person": {
			func(s *scene) { s.claim("pvc", 10, gone); s.volume("pvc", volume.Retained, 10) },
			gc.ActionRelease, volume.Retained, "volume flexlvm/pvc is retained already",
		},
		"unreferenced before somebody said Retain": {
			func(s *scene) { s.claim("pvc", 10, gone, retain, deleting); s.volume("pvc", volume.Unreferenced, 10) },
			gc.ActionRelease, volume.Retained, "is kept until a person gives it up",
		},
		"doomed already": {
			func(s *scene) { s.claim("pvc", 10, gone); s.volume("doomed_pvc", volume.Doomed, 10) },
			gc.ActionRelease, volume.Unreferenced, "is gone",
		},
		"creating": {
			func(s *scene) { s.claim("pvc", 10, gone); s.volume("pvc", volume.Creating, 10) },
			gc.ActionRelease, volume.Unreferenced, "is gone",
		},
		"another PersistentVolume names it": {
			func(s *scene) {
				s.claim("pvc", 10, gone)
				s.claim("copy", 10, func(c *gc.Claim) { c.Volume = "pvc" })
				s.volume("pvc", volume.Ready, 10)
			},
			gc.ActionReport, "", "stays as it is: PersistentVolume copy still names it",
		},
		"another one of that name in another group": {
			func(s *scene) {
				s.pool("second", 10)
				s.claim("pvc", 10, gone)
				s.claim("copy", 10, func(c *gc.Claim) { c.Volume, c.Group = "pvc", "second" })
				s.volume("pvc", volume.Ready, 10)
			},
			gc.ActionRelease, volume.Unreferenced, "is gone",
		},
		"one that cannot be read may mean it": {
			func(s *scene) {
				s.claim("pvc", 10, gone)
				s.view.Unreadable = []string{"odd", "pvc"}
				s.volume("pvc", volume.Ready, 10)
			},
			gc.ActionReport, "", "another PersistentVolume, which cannot be read, may mean it",
		},
		"nonsense in its tags": {
			func(s *scene) {
				s.claim("pvc", 10, gone)
				s.volume("pvc", "", 10, func(v *node.Volume) { v.Cluster, v.Problem = "", "two states" })
			},
			gc.ActionReport, "", "the tags of flexlvm/pvc make no sense (two states)",
		},
		"another cluster's volume": {
			func(s *scene) {
				s.claim("pvc", 10, gone)
				s.volume("pvc", volume.Ready, 10, func(v *node.Volume) { v.Cluster = "another" })
			},
			gc.ActionReport, "", `flexlvm/pvc belongs to cluster "another"`,
		},
		"no group": {
			func(s *scene) { s.claim("pvc", 10, gone, func(c *gc.Claim) { c.Group = "away" }) },
			gc.ActionReport, "", "volume group away is not on this node",
		},
		"no group for one in use": {
			func(s *scene) { s.claim("pvc", 10, func(c *gc.Claim) { c.Group = "away" }) },
			gc.ActionReport, "", "needs volume group away, which is not on this node",
		},
		"half a group": {
			func(s *scene) {
				s.group("flexlvm").Missing = 2
				s.claim("pvc", 10, gone)
				s.volume("pvc", volume.Ready, 10)
			},
			gc.ActionReport, "", "LVM cannot find 2 devices of volume group flexlvm",
		},
		"two groups of one name": {
			func(s *scene) { s.pool("flexlvm", 10); s.claim("pvc", 10, gone) },
			gc.ActionReport, "", "the node has two volume groups flexlvm",
		},
		"wanted and unreferenced": {
			func(s *scene) { s.claim("pvc", 10); s.volume("pvc", volume.Unreferenced, 10) },
			gc.ActionReport, "", "PersistentVolume pvc is Bound and its volume flexlvm/pvc is unreferenced, so no pod can mount it; bring it back with `flexlvm volumes undelete pvc >/dev/null` (the PersistentVolume is there already)",
		},
		"wanted and retained": {
			func(s *scene) { s.claim("pvc", 10); s.volume("pvc", volume.Retained, 10) },
			gc.ActionReport, "", "is retained, so no pod can mount it",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			tt.scene(s)
			got := gc.Judge(s.view)
			require.Len(t, got, 1)
			require.Equal(t, tt.action, got[0].Action)
			require.Equal(t, tt.to, got[0].To)
			require.Contains(t, got[0].Why, tt.why)
		})
	}
}

// A PersistentVolume that was let go may stay for the sake of others' finalizers.
func TestJudgeLetsGoOnce(t *testing.T) {
	for state, left := range map[volume.State]int{
		"": 0, volume.Unreferenced: 0, volume.Retained: 0, volume.Doomed: 0,
		volume.Ready: 1, volume.Creating: 1, // somebody has taken our finalizer off
	} {
		s := newScene()
		s.claim("pvc", 10, phase(corev1.VolumeReleased), deleting, func(c *gc.Claim) { c.HasFinalizer = false })
		if state != "" {
			s.volume("pvc", state, 10)
		}
		require.Len(t, gc.Judge(s.view), left, "state %q", state)
	}
}

// Of two PersistentVolumes of one volume that go together, the one that says
// Retain decides.
func TestJudgeKeepsWhatOneOfTwoRetains(t *testing.T) {
	s := newScene()
	s.volume("pvc", volume.Ready, 10)
	s.claim("pvc", 10, phase(corev1.VolumeReleased), deleting)
	s.claim("copy", 10, phase(corev1.VolumeReleased), deleting, retain, func(c *gc.Claim) { c.Volume = "pvc" })
	got := gc.Judge(s.view)
	require.Len(t, got, 2)
	require.Equal(t, "copy", got[0].Claim.PV, "in order of their names")
	for _, v := range got {
		require.Equal(t, volume.Retained, v.To)
	}
}

func TestJudgeWithoutACluster(t *testing.T) {
	s := newScene()
	s.view.Cluster = ""
	s.claim("pvc", 10, phase(corev1.VolumeReleased), noCluster)
	require.Empty(t, gc.Judge(s.view))
}
