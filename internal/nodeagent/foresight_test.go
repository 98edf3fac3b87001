package nodeagent

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/overview"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// pressed is a node with volumes in every state, and a claim that waits for its volume.
func pressed(headroom string) *evictiontest.Scene {
	s := evictiontest.New()
	if err := s.Policy.Headroom.Set(headroom); err != nil {
		panic(err)
	}
	s.Policy.HighPercent, s.Policy.LowPercent = 70, 60
	s.ForeignVolumes(1, 10)
	s.Volume("old", volume.Unreferenced, 12, evictiontest.LastUsed(100))
	s.Volume("newer", volume.Unreferenced, 8, evictiontest.LastUsed(10))
	s.Volume("last", volume.Unreferenced, 4, evictiontest.LastUsed(6))
	s.Volume("young", volume.Unreferenced, 2, evictiontest.ReleasedAgo(time.Minute))
	s.Volume("busy", volume.Unreferenced, 2, func(v *inventory.Volume) { v.Open = true })
	s.Volume("kept", volume.Retained, 2)
	s.Volume("odd", volume.Unreferenced, 2, evictiontest.WithProblem)
	s.PersistentVolume("waiting", 5)
	return s
}

// unhurried is a node whose thresholds do not matter. Its volumes were created hours apart, but last used and
// released within seconds of each other.
func unhurried(headroom string) *evictiontest.Scene {
	s := evictiontest.New()
	if err := s.Policy.Headroom.Set(headroom); err != nil {
		panic(err)
	}
	s.Policy.HighPercent = 100
	s.ForeignVolumes(1, 50)
	for i, size := range []int{1, 3, 2, 4, 2, 1} {
		at := evictiontest.HoursAgo(5).Add(time.Duration(7-i) * 300 * time.Millisecond)
		s.Volume(fmt.Sprintf("released-%d", i), volume.Unreferenced, size, func(v *inventory.Volume) {
			v.LastUsed, v.Released, v.Created = at, evictiontest.Now.Add(time.Duration(i)*300*time.Millisecond-90*time.Second), evictiontest.HoursAgo(float64(10+2*i))
		})
	}
	for i, size := range []int{1, 2, 1, 1, 1} {
		name := fmt.Sprintf("used-%d", i)
		s.Volume(name, volume.Ready, size, func(v *inventory.Volume) { v.Created = evictiontest.HoursAgo(float64(11 + 2*i)) })
		s.PersistentVolume(name, size)
	}
	return s
}

// reported returns the report of a scene's daemon.
func reported(s *evictiontest.Scene) flexlvmv1.NodeStorage {
	f := observation{at: s.View.Now, view: s.View, result: s.Plan(), inventory: inventory.Inventory{Pools: s.View.Pools, Volumes: s.View.Volumes}}
	out := flexlvmv1.NodeStorage{Status: statusOf(flexlvmv1.NodeStorageStatus{}, f, report{now: s.View.Now, policy: s.Policy})}
	out.Name = "node-1"
	return out
}

// An overview, which is computed from a report alone, matches what the daemon then does: for claims from a small size
// to one that does not fit.
func TestPlanForesees(t *testing.T) {
	for _, headroom := range []string{"0", "auto", "5%", "3Gi"} {
		for name, scene := range map[string]func(string) *evictiontest.Scene{"pressed": pressed, "unhurried": unhurried} {
			t.Run(name+", headroom "+headroom, func(t *testing.T) {
				asked := []overview.Fit{}
				for size := range 90 {
					asked = append(asked, checkForesight(t, scene(headroom), volume.Bytes(size+1)*volume.GiB))
				}
				require.True(t, asked[0].Fits)
				most := slices.IndexFunc(asked, func(f overview.Fit) bool { return !f.Fits })
				require.Positive(t, most)
				require.Contains(t, asked[most].Why, "has no room")
				require.False(t, asked[most-1].After.IsZero(), "it waits until the last one may go")
				then := slices.ContainsFunc(asked, func(f overview.Fit) bool { return len(f.Then) > 0 })
				require.Equal(t, name == "pressed" || headroom != "0", then, "what goes once it is there")
				if name == "pressed" && headroom == "0" {
					require.Empty(t, asked[0].Evictions)
					require.Equal(t, []string{"Promised old", "Promised newer", "Promised last", "Promised young"}, foreseen(asked[most-1].Evictions))
				}
			})
		}
	}
}

// checkForesight computes the overview of a claim, and compares it with the plan of the daemon.
func checkForesight(t *testing.T, s *evictiontest.Scene, size volume.Bytes) overview.Fit {
	t.Helper()
	spec := volume.Spec{Group: "flexlvm", Layout: volume.Linear, Kind: volume.Claim, Size: size}
	objects := overview.Objects{Storages: []flexlvmv1.NodeStorage{reported(s)}}
	for _, c := range s.View.PersistentVolumes {
		object := ledgertest.PersistentVolume("node-1", ledgertest.Want(c.PV, c.Size), func(p *corev1.PersistentVolume) {
			p.Annotations["flexlvm.io/charged"] = fmt.Sprint(int64(c.Charged))
		})
		objects.Volumes = append(objects.Volumes, *object)
	}
	fit := overview.FitsOf(objects, spec, s.View.Now)[0]
	if !fit.Fits {
		return fit
	}
	s.PersistentVolume("new", 1, func(c *persistentvolume.Volume) { c.Size, c.Charged, c.Shape = spec.Size, spec.Charge(), spec.Shape() })
	s.View.StartsUntil = s.View.Now.Add(time.Minute)
	if !fit.After.IsZero() {
		s.View.Now = fit.After.Time
	}
	does := s.Plan()
	require.Equal(t, evictiontest.Evicted(does), foreseen(fit.Evictions), "a claim of %s", spec.Size)

	for _, e := range does.Evictions {
		s.View.Volumes = slices.DeleteFunc(s.View.Volumes, func(v inventory.Volume) bool { return v.Name == e.Volume.Name })
		s.PoolNamed("flexlvm").Free += e.Volume.Allocated
	}
	s.View.Volumes = append(s.View.Volumes, inventory.Volume{
		Group: "flexlvm", GroupUUID: evictiontest.GroupUUID, Name: "new", UUID: "new", State: volume.Ready, Created: s.View.Now,
		Size: spec.Size, Allocated: spec.Charge(), Cluster: evictiontest.Cluster, Kind: volume.Claim, Shape: spec.Shape(),
	})
	s.PoolNamed("flexlvm").Free -= spec.Charge()
	s.View.Now = s.View.Now.Add(s.Policy.MinAge) // volumes that were released just now may be evicted by then
	require.Equal(t, evictiontest.Evicted(s.Plan()), foreseen(fit.Then), "after a claim of %s", spec.Size)
	return fit
}

// withFailedRemovals adds volumes that could not be removed, and volumes that are evicted whether or not their room is
// needed.
func withFailedRemovals(s *evictiontest.Scene, failed int) *evictiontest.Scene {
	s.Policy.MaxAge = 48 * time.Hour
	s.Volume("ancient", volume.Unreferenced, 3, evictiontest.ReleasedAgo(100*time.Hour))
	s.Volume("at-once", volume.Unreferenced, 3, evictiontest.Immediate, evictiontest.ReleasedAgo(time.Second))
	for i := range failed {
		s.Volume(fmt.Sprintf("doomed_%d", i), volume.Doomed, 2, evictiontest.WithProblem)
	}
	return s
}

// An overview knows that a pool in which two removals have failed evicts no volume for its room.
func TestPlanForeseesFailedRemovals(t *testing.T) {
	always := []string{"Immediate at-once", "MaxAge ancient"}
	for name, scene := range map[string]func(string) *evictiontest.Scene{"pressed": pressed, "unhurried": unhurried} {
		for _, headroom := range []string{"0", "auto", "30Gi"} {
			for failed, stalled := range map[int]bool{1: false, 2: true, 3: true} {
				t.Run(fmt.Sprintf("%s, headroom %s, %d failed", name, headroom, failed), func(t *testing.T) {
					more := false
					for size := range 90 {
						fit := checkForesight(t, withFailedRemovals(scene(headroom), failed), volume.Bytes(size+1)*volume.GiB)
						if fit.Fits {
							require.Subset(t, foreseen(fit.Evictions), always)
							more = more || len(fit.Evictions)+len(fit.Then) > len(always) || !fit.After.IsZero()
						}
						require.True(t, fit.Fits || size > 0)
					}
					require.Equal(t, !stalled, more)
					s := withFailedRemovals(scene(headroom), failed)
					s.View.Now = s.View.Now.Add(s.Policy.MinAge) // the volume that was released last may be evicted, too
					next := overview.NextOf([]flexlvmv1.NodeStorage{reported(s)}, 3, s.View.Now)
					require.Subset(t, foreseen(next), always)
					require.Equal(t, !stalled, len(next) > len(always))
				})
			}
		}
	}
}

func foreseen(all []overview.Eviction) []string {
	out := []string{}
	for _, e := range all {
		out = append(out, string(e.Reason)+" "+e.Name)
	}
	return out
}
