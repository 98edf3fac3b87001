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

func TestJudge(t *testing.T) {
	type changes = []func(*persistentvolume.Volume)
	const (
		bound, released, failed   = corev1.VolumeBound, corev1.VolumeReleased, corev1.VolumeFailed
		pending, available        = corev1.VolumePending, corev1.VolumeAvailable
		ready, unreferenced, kept = volume.Ready, volume.Unreferenced, volume.Retained
		release, report           = eviction.ActionRelease, eviction.ActionReport
		made, neverMade           = true, false
		nothing                   = eviction.Action("")
		nowhere                   = volume.State("")
	)
	for name, tt := range map[string]struct {
		claim  changes
		made   bool
		action eviction.Action
		to     volume.State
		why    string
	}{
		"bound":                        {changes{evictiontest.Phase(bound)}, made, nothing, nowhere, ""},
		"pending":                      {changes{evictiontest.Phase(pending)}, neverMade, nothing, nowhere, ""},
		"available":                    {changes{evictiontest.Phase(available)}, neverMade, nothing, nowhere, ""},
		"available, a volume is there": {changes{evictiontest.Phase(available)}, made, nothing, nowhere, ""},
		"released, Delete": {changes{evictiontest.Phase(released)}, made, release, unreferenced,
			"PersistentVolume pvc was released: claim db/data-pvc is gone; its reclaim policy is Delete, so volume flexlvm/pvc may be evicted"},
		"released, Delete, never made": {changes{evictiontest.Phase(released)}, neverMade, release, unreferenced, "is gone"},
		"failed, Delete":               {changes{evictiontest.Phase(failed)}, made, release, unreferenced, "has failed to be reclaimed"},
		"released, Retain":             {changes{evictiontest.Phase(released), evictiontest.Retain}, made, nothing, nowhere, ""},
		"failed, Retain":               {changes{evictiontest.Phase(failed), evictiontest.Retain}, made, nothing, nowhere, ""},

		"deleted, bound":            {changes{evictiontest.Phase(bound), evictiontest.Deleting}, made, nothing, nowhere, ""},
		"deleted, bound, Retain":    {changes{evictiontest.Phase(bound), evictiontest.Deleting, evictiontest.Retain}, made, nothing, nowhere, ""},
		"deleted, released, Delete": {changes{evictiontest.Phase(released), evictiontest.Deleting}, made, release, unreferenced, "PersistentVolume pvc was deleted and no claim is bound to it"},
		"deleted, released, Retain": {changes{evictiontest.Phase(released), evictiontest.Deleting, evictiontest.Retain}, made, release, kept,
			"the reclaim policy is Retain, so volume flexlvm/pvc is kept until someone gives it up (`flexlvm volumes forget pvc`)"},
		"deleted, available, Delete": {changes{evictiontest.Phase(available), evictiontest.Deleting}, neverMade, release, unreferenced, "was deleted"},
		"deleted, pending, Retain":   {changes{evictiontest.Phase(pending), evictiontest.Deleting, evictiontest.Retain}, made, release, kept, "was deleted"},

		"another cluster's, bound":    {changes{evictiontest.OtherCluster}, made, report, nowhere, `records cluster "another"`},
		"another cluster's, released": {changes{evictiontest.OtherCluster, evictiontest.Phase(released)}, made, report, nowhere, `records cluster "another"`},
		"another cluster's, deleted":  {changes{evictiontest.OtherCluster, evictiontest.Phase(released), evictiontest.Deleting}, made, report, nowhere, `remove the finalizer flexlvm.io/volume`},
		"no cluster, bound":           {changes{evictiontest.NoCluster}, made, nothing, nowhere, ""},
		"no cluster, released":        {changes{evictiontest.NoCluster, evictiontest.Phase(released)}, made, report, nowhere, "the option clusterUID is missing"},
		"no cluster, kept":            {changes{evictiontest.NoCluster, evictiontest.Phase(released), evictiontest.Retain}, made, nothing, nowhere, ""},
		"group replaced, bound":       {changes{evictiontest.OtherGroup}, made, report, nowhere, "bring the disks of the other one back; only if they are lost permanently, such as after a replacement, delete claim db/data-pvc"},
		"group replaced, a snapshot":  {changes{evictiontest.OtherGroup, takenSnapshot}, made, report, nowhere, "only if they are lost permanently, such as after a replacement, delete its VolumeSnapshot"},
		"group replaced, of a group":  {changes{evictiontest.OtherGroup, takenSnapshot, func(c *persistentvolume.Volume) { c.SnapshotGroup = "groupsnapshot-1" }}, made, report, nowhere, "such as after a replacement, delete its VolumeGroupSnapshot, with all its other snapshots (first restore those that are needed)"},
		"group replaced, released":    {changes{evictiontest.OtherGroup, evictiontest.Phase(released)}, made, report, nowhere, "it was created in volume group flexlvm with UUID another"},
		"group replaced, volume lost": {changes{evictiontest.OtherGroup, evictiontest.Phase(released)}, neverMade, release, unreferenced, "is gone"},
	} {
		t.Run(name, func(t *testing.T) {
			s := evictiontest.New()
			s.PersistentVolume("pvc", 10, tt.claim...)
			if tt.made {
				s.Volume("pvc", ready, 10)
			}
			got := eviction.Judge(s.View)
			if tt.action == nothing {
				require.Empty(t, got)
				return
			}
			require.Len(t, got, 1)
			require.Equal(t, tt.action, got[0].Action)
			require.Equal(t, tt.to, got[0].To)
			require.Contains(t, got[0].Why, tt.why)
			require.Equal(t, s.View.PersistentVolumes[1], got[0].PersistentVolume)
		})
	}
}

// The state of the volume can prevent what the API calls for.
func TestJudgeAgainstTheNode(t *testing.T) {
	gone := evictiontest.Phase(corev1.VolumeReleased)
	for name, tt := range map[string]struct {
		scene  func(*evictiontest.Scene)
		action eviction.Action
		to     volume.State
		why    string
	}{
		"unreferenced already": {
			func(s *evictiontest.Scene) {
				s.PersistentVolume("pvc", 10, gone)
				s.Volume("pvc", volume.Unreferenced, 10)
			},
			eviction.ActionRelease, volume.Unreferenced, "volume flexlvm/pvc is unreferenced already",
		},
		"in use, of a restored API server": {
			func(s *evictiontest.Scene) {
				s.PersistentVolume("pvc", 10, gone)
				s.Volume("pvc", volume.Ready, 10)
				s.View.WentBack = "resourceVersion 500 after 1000"
			},
			eviction.ActionReport, "", "the API server has gone back in time (resourceVersion 500 after 1000), as if it had been restored from a backup, and may not know who has used the volume since; set the reclaim policy to Retain",
		},
		"released before, of a restored API server": {
			func(s *evictiontest.Scene) {
				s.PersistentVolume("pvc", 10, gone)
				s.Volume("pvc", volume.Unreferenced, 10)
				s.View.WentBack = "resourceVersion 500 after 1000"
			},
			eviction.ActionRelease, volume.Unreferenced, "volume flexlvm/pvc is unreferenced already",
		},
		"a snapshot, of a restored API server": {
			func(s *evictiontest.Scene) {
				s.PersistentVolume("pvc", 10, gone, func(c *persistentvolume.Volume) { c.Kind = volume.Snapshot })
				s.Volume("pvc", volume.Ready, 10, func(v *inventory.Volume) { v.Kind = volume.Snapshot })
				s.View.WentBack = "resourceVersion 500 after 1000"
			},
			eviction.ActionRelease, volume.Unreferenced, "it represents a snapshot",
		},
		"retained by a person": {
			func(s *evictiontest.Scene) { s.PersistentVolume("pvc", 10, gone); s.Volume("pvc", volume.Retained, 10) },
			eviction.ActionRelease, volume.Retained, "volume flexlvm/pvc is retained already",
		},
		"unreferenced before somebody said Retain": {
			func(s *evictiontest.Scene) {
				s.PersistentVolume("pvc", 10, gone, evictiontest.Retain, evictiontest.Deleting)
				s.Volume("pvc", volume.Unreferenced, 10)
			},
			eviction.ActionRelease, volume.Retained, "is kept until someone gives it up",
		},
		"doomed already": {
			func(s *evictiontest.Scene) {
				s.PersistentVolume("pvc", 10, gone)
				s.Volume("doomed_pvc", volume.Doomed, 10)
			},
			eviction.ActionRelease, volume.Unreferenced, "is gone",
		},
		"creating": {
			func(s *evictiontest.Scene) { s.PersistentVolume("pvc", 10, gone); s.Volume("pvc", volume.Creating, 10) },
			eviction.ActionRelease, volume.Unreferenced, "is gone",
		},
		"another PersistentVolume names it": {
			func(s *evictiontest.Scene) {
				s.PersistentVolume("pvc", 10, gone)
				s.PersistentVolume("copy", 10, func(c *persistentvolume.Volume) { c.Volume = "pvc" })
				s.Volume("pvc", volume.Ready, 10)
			},
			eviction.ActionReport, "", "stays as it is: PersistentVolume copy still names it",
		},
		"another one of that name in another group": {
			func(s *evictiontest.Scene) {
				s.Pool("second", 10)
				s.PersistentVolume("pvc", 10, gone)
				s.PersistentVolume("copy", 10, func(c *persistentvolume.Volume) { c.Volume, c.Group = "pvc", "second" })
				s.Volume("pvc", volume.Ready, 10)
			},
			eviction.ActionRelease, volume.Unreferenced, "is gone",
		},
		"one that cannot be read may mean it": {
			func(s *evictiontest.Scene) {
				s.PersistentVolume("pvc", 10, gone)
				s.View.Unreadable = []string{"odd", "pvc"}
				s.Volume("pvc", volume.Ready, 10)
			},
			eviction.ActionReport, "", "another PersistentVolume, which cannot be read, may name it or be a copy of it",
		},
		"nonsense in its tags": {
			func(s *evictiontest.Scene) {
				s.PersistentVolume("pvc", 10, gone)
				s.Volume("pvc", "", 10, func(v *inventory.Volume) { v.Cluster, v.Problem = "", "two states" })
			},
			eviction.ActionReport, "", "the tags of flexlvm/pvc are invalid (two states)",
		},
		"another cluster's volume": {
			func(s *evictiontest.Scene) {
				s.PersistentVolume("pvc", 10, gone)
				s.Volume("pvc", volume.Ready, 10, func(v *inventory.Volume) { v.Cluster = "another" })
			},
			eviction.ActionReport, "", `flexlvm/pvc belongs to cluster "another"`,
		},
		"no group": {
			func(s *evictiontest.Scene) {
				s.PersistentVolume("pvc", 10, gone, func(c *persistentvolume.Volume) { c.Group = "away" })
			},
			eviction.ActionReport, "", "LVM does not see volume group away on this node, so its state is unknown; bring its disks back (`flexlvm doctor --group away` shows whether LVM's devices file hides them; then run `vgimportdevices away`); only if they are lost permanently, remove the finalizer flexlvm.io/volume",
		},
		"no group for one in use": {
			func(s *evictiontest.Scene) {
				s.PersistentVolume("pvc", 10, func(c *persistentvolume.Volume) { c.Group, c.GroupUUID = "away", "another" })
			},
			eviction.ActionReport, "", "needs volume group away, which LVM does not see on this node; bring its disks back (`flexlvm doctor --group away` shows whether LVM's devices file hides them; then run `vgimportdevices away`); only if they are lost permanently, delete claim db/data-pvc",
		},
		"no group for one that was made by hand": {
			func(s *evictiontest.Scene) {
				s.PersistentVolume("pvc", 10, func(c *persistentvolume.Volume) { c.Group = "away" })
			},
			eviction.ActionReport, "", "then run `vgimportdevices away`), or create the group if it never existed (`flexlvm vg create`); only if they are lost",
		},
		"half a group": {
			func(s *evictiontest.Scene) {
				s.PoolNamed("flexlvm").Missing = 2
				s.PersistentVolume("pvc", 10, gone)
				s.Volume("pvc", volume.Ready, 10)
			},
			eviction.ActionReport, "", "LVM cannot find 2 devices of volume group flexlvm",
		},
		"an exported group": {
			func(s *evictiontest.Scene) {
				s.PoolNamed("flexlvm").Exported = true
				s.PersistentVolume("pvc", 10, gone)
				s.Volume("pvc", volume.Ready, 10)
			},
			eviction.ActionReport, "", "volume group flexlvm is exported, and LVM changes nothing in it until `vgimport flexlvm`",
		},
		"two groups of one name": {
			func(s *evictiontest.Scene) { s.Pool("flexlvm", 10); s.PersistentVolume("pvc", 10, gone) },
			eviction.ActionReport, "", "the node has two volume groups flexlvm",
		},
		"wanted and unreferenced": {
			func(s *evictiontest.Scene) { s.PersistentVolume("pvc", 10); s.Volume("pvc", volume.Unreferenced, 10) },
			eviction.ActionReport, "", "PersistentVolume pvc is Bound and its volume flexlvm/pvc is unreferenced, so no pod can mount it; bring it back with `flexlvm volumes undelete pvc --no-manifests` (the PersistentVolume is there already)",
		},
		"wanted and gone, though the node has had it": {
			func(s *evictiontest.Scene) {
				s.PersistentVolume("pvc", 10)
				lose(s)
			},
			eviction.ActionReport, "", "PersistentVolume pvc is Bound and its volume flexlvm/pvc, which was here as far as this node's records show, is gone, so no pod can mount it; delete claim db/data-pvc and restore the data from a backup; `grep description /etc/lvm/archive/flexlvm_*`",
		},
		"a replica that is gone": {
			func(s *evictiontest.Scene) {
				s.PersistentVolume("pvc", 10, func(c *persistentvolume.Volume) { c.Kind = volume.Dataset })
				lose(s)
			},
			eviction.ActionReport, "", "delete claim db/data-pvc, and the replica is loaded again",
		},
		"a taken snapshot that is gone": {
			func(s *evictiontest.Scene) {
				s.PersistentVolume("pvc", 10, evictiontest.Phase(corev1.VolumeAvailable), takenSnapshot)
				lose(s)
			},
			eviction.ActionReport, "", "PersistentVolume pvc is Available and its volume flexlvm/pvc, which was taken according to the PersistentVolume, is gone, so the snapshot cannot be restored; delete its VolumeSnapshot",
		},
		"a snapshot that was given up on the node": {
			func(s *evictiontest.Scene) {
				s.PersistentVolume("pvc", 10, evictiontest.Phase(corev1.VolumeAvailable), takenSnapshot)
				s.Volume("pvc", volume.Unreferenced, 10, func(v *inventory.Volume) { v.Kind = volume.Snapshot })
			},
			eviction.ActionReport, "", "PersistentVolume pvc is Available and its volume flexlvm/pvc is unreferenced, and a snapshot cannot be undeleted; restore it to a claim if its content is needed, then delete its VolumeSnapshot",
		},
		"wanted and retained": {
			func(s *evictiontest.Scene) { s.PersistentVolume("pvc", 10); s.Volume("pvc", volume.Retained, 10) },
			eviction.ActionReport, "", "is retained, so no pod can mount it",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := evictiontest.New()
			tt.scene(s)
			got := eviction.Judge(s.View)
			require.Len(t, got, 1)
			require.Equal(t, tt.action, got[0].Action)
			require.Equal(t, tt.to, got[0].To)
			require.Contains(t, got[0].Why, tt.why)
		})
	}
}

// takenSnapshot makes the volume of a PersistentVolume a snapshot that was taken.
func takenSnapshot(c *persistentvolume.Volume) { c.Kind, c.Taken = volume.Snapshot, true }

// lose makes the volume of the last claim one that the node had before, and that is gone.
func lose(s *evictiontest.Scene) {
	last := &s.View.PersistentVolumes[len(s.View.PersistentVolumes)-1]
	s.View.Lost = map[eviction.Key]eviction.Loss{eviction.KeyOfPersistentVolume(last): eviction.LossProved}
}

// While LVM cannot show all volumes, none counts as gone.
func TestJudgeDoesNotCallGoneWhatItCannotSee(t *testing.T) {
	for name, hide := range map[string]func(*inventory.Pool){
		"missing devices": func(p *inventory.Pool) { p.Missing = 1 },
		"another group":   func(p *inventory.Pool) { p.UUID = "another" },
		"records unread":  nil,
	} {
		for kind, of := range map[string]func(*persistentvolume.Volume){
			"claim": func(*persistentvolume.Volume) {}, "snapshot": takenSnapshot,
		} {
			t.Run(name+", "+kind, func(t *testing.T) {
				s := evictiontest.New()
				s.PersistentVolume("pvc", 10, of, func(c *persistentvolume.Volume) { c.GroupUUID = s.PoolNamed("flexlvm").UUID })
				lose(s)
				if hide == nil {
					for key := range s.View.Lost {
						s.View.Lost[key] = eviction.LossUnproved
					}
				} else {
					hide(s.PoolNamed("flexlvm"))
				}
				for _, v := range eviction.Judge(s.View) {
					require.NotContains(t, v.Why, "is gone")
				}
			})
		}
	}
}

// A released PersistentVolume may stay because of other finalizers.
func TestJudgeLetsGoOnce(t *testing.T) {
	for state, left := range map[volume.State]int{
		"": 0, volume.Unreferenced: 0, volume.Retained: 0, volume.Doomed: 0,
		volume.Ready: 1, volume.Creating: 1, // flexlvm's finalizer was removed by hand
	} {
		s := evictiontest.New()
		s.PersistentVolume("pvc", 10, evictiontest.Phase(corev1.VolumeReleased), evictiontest.Deleting, func(c *persistentvolume.Volume) { c.HasFinalizer = false })
		if state != "" {
			s.Volume("pvc", state, 10)
		}
		require.Len(t, eviction.Judge(s.View), left, "state %q", state)
	}
}

// Retain is set while the PersistentVolume stays only because of another finalizer: the volume is retained beyond the
// deletion of the PersistentVolume.
func TestJudgeHearsRetainUntilTheObjectIsGone(t *testing.T) {
	for state, left := range map[volume.State]int{"": 0, volume.Unreferenced: 1, volume.Retained: 0, volume.Doomed: 0} {
		s := evictiontest.New()
		s.PersistentVolume("pvc", 10, evictiontest.Phase(corev1.VolumeReleased), evictiontest.Deleting, evictiontest.Retain, func(c *persistentvolume.Volume) { c.HasFinalizer = false })
		if state != "" {
			s.Volume("pvc", state, 10)
		}
		got := eviction.Judge(s.View)
		require.Len(t, got, left, "state %q", state)
		for _, v := range got {
			require.Equal(t, volume.Retained, v.To)
		}
	}
}

// If two PersistentVolumes of the same volume are given up together, the one with Retain decides.
func TestJudgeKeepsWhatOneOfTwoRetains(t *testing.T) {
	s := evictiontest.New()
	s.Volume("pvc", volume.Ready, 10)
	s.PersistentVolume("pvc", 10, evictiontest.Phase(corev1.VolumeReleased), evictiontest.Deleting)
	s.PersistentVolume("copy", 10, evictiontest.Phase(corev1.VolumeReleased), evictiontest.Deleting, evictiontest.Retain, func(c *persistentvolume.Volume) { c.Volume = "pvc" })
	got := eviction.Judge(s.View)
	require.Len(t, got, 2)
	require.Equal(t, "copy", got[0].PersistentVolume.PV, "in order of their names")
	for _, v := range got {
		require.Equal(t, volume.Retained, v.To)
	}
}

func TestJudgeWithoutACluster(t *testing.T) {
	s := evictiontest.New()
	s.View.Cluster = ""
	s.PersistentVolume("pvc", 10, evictiontest.Phase(corev1.VolumeReleased), evictiontest.NoCluster)
	require.Empty(t, eviction.Judge(s.View))
}

// If a claim is deleted while its volume moves to the other driver, two PersistentVolumes with the policy Retain
// are left. The volume is given up once both say Delete.
func TestJudgeAfterAMoveThatWasCutOff(t *testing.T) {
	released := evictiontest.Phase(corev1.VolumeReleased)
	door := func(c *persistentvolume.Volume) { c.Volume = "pvc" }
	for name, tt := range map[string]struct {
		old  []func(*persistentvolume.Volume)
		want []string
	}{
		"one retained":             {[]func(*persistentvolume.Volume){evictiontest.Retain}, []string{"pvc-door report "}},
		"one retained and deleted": {[]func(*persistentvolume.Volume){evictiontest.Retain, evictiontest.Deleting}, []string{"pvc release retained", "pvc-door release retained"}},
		"both Delete":              {nil, []string{"pvc release unreferenced", "pvc-door release unreferenced"}},
	} {
		s := evictiontest.New()
		s.PersistentVolume("pvc", 10, append(tt.old, released)...)
		s.PersistentVolume("pvc-door", 10, door, released)
		s.Volume("pvc", volume.Ready, 10)
		var got []string
		for _, v := range eviction.Judge(s.View) {
			got = append(got, v.PersistentVolume.PV+" "+string(v.Action)+" "+string(v.To))
		}
		require.Equal(t, tt.want, got, name)
	}
}
