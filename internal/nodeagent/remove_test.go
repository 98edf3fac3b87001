package nodeagent_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A volume that is in use is reported, and its removal is retried. Another one is evicted instead only if the retry
// fails, too: the use may have ended.
func TestRemovalInUse(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("big", 63)
	r.volume("old", volume.Unreferenced, 15, evictiontest.LastUsed(50))
	r.volume("older", volume.Unreferenced, 6, evictiontest.LastUsed(60))
	r.engine.with(func() {
		r.engine.fault = func(call string) error {
			if call == "remove flexlvm/older" {
				return node.ErrInUse
			}
			return nil
		}
	})
	r.start()
	r.eventually(func() bool { return len(r.api.told("VolumeNotEvicted")) == 1 }, "no event")
	r.rounds(3)
	require.Len(t, r.engine.called("remove flexlvm/older"), 1, "tried again too early: the clock stands")
	require.Contains(t, r.engine.names(), "old unreferenced", "it may go at the next try")
	require.Contains(t, r.status().Orphans[0].Problem, "its device is in use")
	require.EqualValues(t, 1, r.metric("flexlvm_gc_failures_total"))

	r.clock.pass(6 * time.Second)
	r.eventually(func() bool { return !slices.Contains(r.engine.names(), "old unreferenced") }, "the other does not go in its stead")
	require.Contains(t, r.engine.names(), "older unreferenced")
	r.rounds(3)
	require.Len(t, r.engine.called("remove flexlvm/older"), 2)
	require.EqualValues(t, 2, r.metric("flexlvm_gc_failures_total"))

	r.engine.with(func() { r.engine.fault = nil })
	r.clock.pass(10 * time.Minute)
	r.claimed("more", 15)
	r.eventually(func() bool { return !slices.Contains(r.engine.names(), "older unreferenced") }, "it is not tried again")
	r.eventually(func() bool { return len(r.status().Orphans) == 0 }, "still reported")
}

// A mirror that is still being synchronised is wiped later. That is no failure as long as it makes progress, which the
// kernel reports only every five minutes: attempts that follow each other faster prove nothing.
func TestRemovalWaitsForCopies(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("big", 70)
	r.volume("old", volume.Unreferenced, 15, evictiontest.LastUsed(50))
	r.engine.with(func() { r.engine.fault = failing("remove flexlvm/old", fmt.Errorf("wipe volume: %w", node.ErrSyncing)) })
	r.start()
	r.eventually(func() bool { return len(r.api.told("VolumeNotEvicted")) == 1 }, "no event")
	again := func() {
		t.Helper()
		tried := len(r.engine.called("remove flexlvm/old"))
		r.clock.pass(10 * time.Minute)
		r.eventually(func() bool { return len(r.engine.called("remove flexlvm/old")) > tried }, "it is not tried again")
		r.rounds(2)
		require.Zero(t, r.metric("flexlvm_gc_failures_total", "removal"))
	}
	synced := func(percent string) {
		r.engine.with(func() {
			for i := range r.engine.volumes {
				r.engine.volumes[i].SyncPercent = percent
			}
		})
		r.rounds(2)
	}
	again()
	require.Contains(t, r.status().Orphans[0].Problem, "its copies are still being synchronised (how far is unknown)")
	synced("12.34")
	for range 5 { // until the delay is the longest one, of five minutes
		again()
	}
	synced("12.35")
	again()
	require.Contains(t, r.status().Orphans[0].Problem, "its copies are still being synchronised (12.35% in sync)")
	r.clock.pass(10 * time.Minute)
	r.eventually(func() bool { return r.metric("flexlvm_gc_failures_total", "removal") > 0 }, "it stands still, and does not count as failed")
	r.rounds(1)
	r.engine.with(func() { r.engine.fault = nil })
	r.clock.pass(10 * time.Minute)
	r.eventually(func() bool { return !slices.Contains(r.engine.names(), "old unreferenced") }, "it is not tried again")
}

// While a removal runs, no other volume is evicted for the same room, even if a volume that is no longer in use would
// now be first.
func TestOneIsEnough(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.config.Policy.LowPercent = 84
	r.claimed("big", 76)
	r.volume("old", volume.Unreferenced, 6, evictiontest.LastUsed(60))
	r.volume("older", volume.Unreferenced, 6, evictiontest.LastUsed(100), func(v *inventory.Volume) { v.Open = true })
	r.engine.committing = make(chan struct{})
	r.start()
	r.eventually(func() bool { return len(r.engine.called("remove flexlvm/old")) == 1 }, "not removed")
	r.engine.with(func() { r.engine.find(node.Ref{Group: "flexlvm"}, "older").Open = false })
	r.rounds(3)
	require.EqualValues(t, 6<<30, r.status().Pools[0].Removing.Value())
	close(r.engine.committing)
	r.eventually(func() bool { return !slices.Contains(r.engine.names(), "old unreferenced") }, "left: %v", r.engine.names())
	r.rounds(3)
	require.Equal(t, []string{"big ready", "older unreferenced", "settled ready"}, r.engine.names())
	require.Len(t, r.engine.called("remove"), 1)
}

// removalsDoNotEnd makes each removal fail after its commit, and each retry.
func (r *rig) removalsDoNotEnd() {
	failed := errors.New("discard: remote I/O error")
	var again func() error
	again = func() error {
		r.engine.committed = again
		return failed
	}
	r.engine.with(func() { r.engine.committed, r.engine.fault = again, failing("remove flexlvm/doomed_", failed) })
}

// A failure after the commit would probably also fail the next removals. So no more than two volumes are doomed, and
// the others can still be undeleted.
func TestRemovalsThatDoNotEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.config.Policy.LowPercent = 84 // one at a time
	r.claimed("big", 54)
	for i := range 6 {
		r.volume(fmt.Sprintf("old-%d", i), volume.Unreferenced, 5, evictiontest.LastUsed(float64(60-i)))
	}
	r.removalsDoNotEnd()
	r.start()
	left := []string{"big ready", "doomed_old-0 doomed", "doomed_old-1 doomed", "old-2 unreferenced", "old-3 unreferenced", "old-4 unreferenced", "old-5 unreferenced", "settled ready"}
	r.eventually(func() bool {
		r.clock.pass(time.Second) // the next one starts after two failures of the one before
		return slices.Equal(r.engine.names(), left)
	}, "left: %v", r.engine.names())
	for range 5 { // retries fail as well
		tries := len(r.engine.called("remove"))
		r.clock.pass(10 * time.Minute)
		r.eventually(func() bool { return len(r.engine.called("remove")) >= tries+2 }, "not tried again")
		r.rounds(2)
	}
	require.Equal(t, left, r.engine.names())
	require.True(t, r.status().Pools[0].Reclaimable.IsZero())
	require.Contains(t, r.condition("Shortfall").Message,
		"2 volumes that were given up could not be removed (flexlvm/doomed_old-0: removing it has failed (discard: remote I/O error); it is retried), so no more are given up for their room until that is corrected")

	r.engine.with(func() { r.engine.committed, r.engine.fault = nil, nil })
	r.clock.pass(10 * time.Minute)
	r.eventually(func() bool { return !strings.Contains(strings.Join(r.engine.names(), " "), "doomed") }, "left: %v", r.engine.names())
	r.eventually(func() bool { return r.condition("Shortfall").Status == metav1.ConditionFalse }, "the shortfall stays: %v", r.condition("Shortfall"))
}

// The same if the room of four volumes is needed at the same time.
func TestNoMoreThanTwoDoNotEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("big", 60)
	for i := range 6 {
		r.volume(fmt.Sprintf("old-%d", i), volume.Unreferenced, 5, evictiontest.LastUsed(float64(60-i)))
	}
	r.api.put(object("new", 25))
	r.removalsDoNotEnd()
	r.start()
	r.eventually(func() bool { return len(r.engine.doomed()) == 2 }, "doomed: %v", r.engine.names())
	for range 4 {
		r.clock.pass(10 * time.Minute)
		r.rounds(3)
	}
	require.Equal(t, []string{"doomed_old-0 doomed", "doomed_old-1 doomed"}, r.engine.doomed())
}

// The next process finishes a removal whose process was killed after the commit.
func TestRemovalIsFinished(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.volume("doomed_gone", volume.Doomed, 1)
	r.volume("doomed_theirs", volume.Doomed, 1, func(v *inventory.Volume) { v.Cluster = "another" })
	r.start()
	r.eventually(func() bool { return slices.Equal(r.engine.names(), []string{"doomed_theirs doomed", "settled ready"}) }, "left: %v", r.engine.names())
	r.eventually(func() bool { return len(r.api.told("RemovalFinished")) == 1 }, "no event")
	r.rounds(2)
	require.Len(t, r.engine.called("remove"), 1)
}

// A dataset's replica may have the same name as one whose removal is not finished. Finishing that removal must not
// touch the new replica.
func TestFinishingTouchesNoOtherOfItsName(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	replica := func(v *inventory.Volume) { v.Kind = volume.Dataset }
	r.volume("doomed_copy", volume.Doomed, 1, replica)
	r.volume("copy", volume.Unreferenced, 1, replica, evictiontest.ReleasedAgo(0), func(v *inventory.Volume) { v.UUID = "another" })
	r.start()
	r.eventually(func() bool { return slices.Equal(r.engine.names(), []string{"copy unreferenced", "settled ready"}) }, "left: %v", r.engine.names())
	r.rounds(2)
	require.Contains(t, r.engine.names(), "copy unreferenced", "it is young, and there is no pressure")
}

// The same for an orphan whose removal failed after its commit: a new volume of that name is not given up.
func TestOrphanIsGivenUpOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("big", 70)
	r.volume(replicaName, volume.Ready, 20, evictiontest.LastUsed(100), func(v *inventory.Volume) { v.Kind = volume.Dataset })
	r.config.Policy.EvictOrphans = true
	r.engine.committed = func() error {
		again := *r.engine.find(node.Ref{Group: "flexlvm"}, "doomed_"+replicaName)
		again.Name, again.UUID, again.State, again.LastUsed = replicaName, "another", volume.Ready, evictiontest.Now
		r.engine.volumes = append(r.engine.volumes, again)
		return errors.New("the device is busy")
	}
	r.start()
	r.eventually(func() bool { return len(r.api.told("VolumeNotEvicted")) == 1 }, "no event")
	r.clock.pass(10 * time.Minute)
	r.eventually(func() bool { return !slices.Contains(r.engine.names(), "doomed_"+replicaName+" doomed") }, "left: %v", r.engine.names())
	r.rounds(2)
	require.Equal(t, []string{"big ready", replicaName + " ready", "settled ready"}, r.engine.names())
	require.Len(t, r.engine.called("release"), 1)
}

// An eviction whose removal fails after its commit is announced once, as an eviction, whether the volume still exists
// or not.
func TestEvictionIsToldThoughItsRemovalFails(t *testing.T) {
	t.Parallel()
	for name, left := range map[string]bool{"volume is left, doomed": true, "volume is gone all the same": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.full()
			r.engine.with(func() {
				r.engine.committed = func() error {
					if !left {
						r.engine.volumes = slices.DeleteFunc(r.engine.volumes, func(v inventory.Volume) bool { return v.State == volume.Doomed })
						r.engine.pools[0].Free += 15 * volume.GiB
					}
					return errors.New("the device is busy")
				}
			})
			r.start()
			r.eventually(func() bool { return len(r.api.told("VolumeNotEvicted")) == 1 }, "the failure is not told")
			r.clock.pass(time.Minute)
			r.eventually(func() bool { return slices.Equal(r.engine.names(), []string{"big ready", "settled ready"}) }, "left: %v", r.engine.names())
			r.eventually(func() bool { return len(r.api.told("VolumeEvicted")) == 1 }, "not told")
			require.Contains(t, r.api.told("VolumeEvicted")[0], "flexlvm/old was evicted (HighThreshold)")
			r.toldNoMore("VolumeEvicted")
			require.Len(t, r.api.told("VolumeEvicted"), 1)
			require.Empty(t, r.api.told("RemovalFinished"))
			require.EqualValues(t, 1, r.metric("flexlvm_evictions_total"))
		})
	}
}

// Wiping may take hours. Rounds, and removals without wiping, go on meanwhile.
func TestWipingHoldsNothingUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	wiping := make(chan struct{})
	r.engine.with(func() { r.engine.wiping = wiping })
	r.volume("secret", volume.Unreferenced, 10, evictiontest.Immediate, evictiontest.LastUsed(100), func(v *inventory.Volume) { v.Wipe = volume.WipeZero })
	stop := r.start()
	r.eventually(func() bool { return len(r.engine.called("remove flexlvm/secret")) == 1 }, "not begun")
	r.volume("plain", volume.Unreferenced, 10, evictiontest.Immediate)
	r.eventually(func() bool { return !slices.Contains(r.engine.names(), "plain unreferenced") }, "held up")
	for _, name := range []string{"plain", "secret"} { // a stopped daemon does not announce what is still queued
		r.eventually(func() bool {
			return slices.ContainsFunc(r.api.told("VolumeEvicted"), func(e string) bool { return strings.Contains(e, "flexlvm/"+name) })
		}, "the eviction of %s has committed and is not told", name)
	}
	r.rounds(2)
	require.Len(t, r.engine.called("remove flexlvm/secret"), 1)
	stop()
	require.Contains(t, r.engine.names(), "doomed_secret doomed", "a daemon that is told to end does not wait for hours")

	close(wiping)
	r.start()
	r.eventually(func() bool { return slices.Equal(r.engine.names(), []string{"settled ready"}) }, "left: %v", r.engine.names())
	r.eventually(func() bool { return len(r.api.told("RemovalFinished")) == 1 }, "no event")
	require.Len(t, r.api.told("VolumeEvicted"), 2)
}

// Deleting the files of a directory volume may take hours as well.
func TestDeletingFilesHoldsNothingUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	deleting := make(chan struct{})
	r.engine.with(func() { r.engine.wiping = deleting })
	r.directory("files", 10)
	r.start()
	r.eventually(func() bool { return len(r.engine.called("remove flexlvm/files")) == 1 }, "not begun")
	r.volume("plain", volume.Unreferenced, 10, evictiontest.Immediate)
	r.eventually(func() bool { return slices.Equal(r.engine.names(), []string{"doomed_files doomed", "settled ready"}) }, "left: %v", r.engine.names())
	r.rounds(2)
	require.Len(t, r.engine.called("remove flexlvm/files"), 1)
	close(deleting)
	r.eventually(func() bool { return slices.Equal(r.engine.names(), []string{"settled ready"}) }, "left: %v", r.engine.names())
}

// The removal of a directory volume does not prove that LVM can remove volumes of its group: the first logical volume
// is removed alone.
func TestDirectoriesProveNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.directory("files", 10)
	r.start()
	r.eventually(func() bool { return len(r.api.told("VolumeEvicted")) == 1 }, "not removed")
	s := evictiontest.Scene{}
	s.Pool("flexlvm", 100)
	for i := range 5 {
		s.Volume(fmt.Sprintf("old-%d", i), volume.Unreferenced, 10, evictiontest.Immediate)
	}
	r.engine.with(func() { r.engine.volumes = append(r.engine.volumes, s.View.Volumes...) })
	r.eventually(func() bool { return slices.Equal(r.engine.names(), []string{"settled ready"}) }, "left: %v", r.engine.names())
	r.requireBatchAfterOne()
}

// directory adds a volume that is removed immediately, in a directory pool of its own.
func (r *rig) directory(name string, size int) {
	r.volume(name, volume.Unreferenced, size, evictiontest.Immediate)
	r.engine.with(func() {
		v := r.engine.find(node.Ref{Group: "flexlvm"}, volume.Name(name))
		v.Shape = volume.Shape{Layout: volume.Directory, DirectoryPool: "small"}
		r.engine.pools[0].Free += v.Allocated
		r.engine.pools[0].LVs--
		r.engine.pools = append(r.engine.pools, inventory.Pool{
			Name: v.Pool(), UUID: "uuid-small", Size: 2 * v.Allocated, Free: v.Allocated, Extent: volume.Block, LVs: 1,
			Directories: &inventory.DirectoryPool{GroupUUID: evictiontest.GroupUUID, Known: true},
		})
	})
}

// If a removal fails, the next one was decided on the assumption that it would succeed, so it waits for another
// round.
func TestFailedRemovalHoldsTheNext(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	failed := make(chan struct{})
	r.engine.with(func() {
		r.engine.fault = func(call string) error {
			switch call {
			case "remove flexlvm/first":
				close(failed)
				return errors.New("made to fail")
			case "inventory":
				select {
				case <-failed: // no round may decide again
					return errors.New("made to fail")
				default:
				}
			}
			return nil
		}
	})
	r.claimed("big", 70)
	r.volume("first", volume.Unreferenced, 14, evictiontest.LastUsed(100))
	r.volume("second", volume.Unreferenced, 14, evictiontest.LastUsed(50))
	r.start()
	r.eventually(func() bool { return r.failedRounds() > 1 }, "no round fails")
	require.Equal(t, []string{"big ready", "first unreferenced", "second unreferenced", "settled ready"}, r.engine.names())
	require.Empty(t, r.engine.called("remove flexlvm/second"))
}

// A volume that was released while the clock was ahead is evicted after this daemon has observed it for --min-age.
func TestReleasedInTheFuture(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("big", 70)
	future := evictiontest.Now.AddDate(73, 0, 0)
	r.volume("future", volume.Unreferenced, 15, func(v *inventory.Volume) { v.LastUsed, v.Released = future, future })
	r.start()
	r.rounds(3)
	require.Contains(t, r.engine.names(), "future unreferenced", "not before --min-age")
	r.clock.pass(r.config.Policy.MinAge)
	r.eventually(func() bool { return !slices.Contains(r.engine.names(), "future unreferenced") }, "it stays until 2099")
}
