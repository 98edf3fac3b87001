package nodeagent_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// A long cleaning is confirmed with the API server each minute, whatever the watches show.
func TestCleaningIsConfirmedWhileItLasts(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*rig){
		"Retain": func(r *rig) { r.api.put(static("pv-1", pvReleased, pvRetain)) },
		"gone":   func(r *rig) { r.api.remove("static-a") },
		"error":  func(r *rig) { r.api.fail(500, "get persistentvolumes") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, disks := newDiscoveryRig(t)
			r.offered()
			blocked := blockCleaning(disks)
			close(blocked.let)
			r.api.put(static("pv-1", pvReleased))
			look := r.mounts()
			r.start()
			waitFor(t, blocked.begun, "it does not begin to clean")

			gets := r.api.requests("get persistentvolumes")
			r.clock.pass(time.Minute)
			r.eventually(func() bool { look(); return r.api.requests("get persistentvolumes") > gets }, "it is not confirmed")
			require.False(t, isClosed(blocked.stopped), "it is as it was")

			r.api.with(func() { r.api.hung = true })
			change(r)
			r.clock.pass(time.Minute)
			r.eventually(func() bool { look(); return isClosed(blocked.stopped) }, "it goes on cleaning")
			require.Equal(t, 1, disks.cleanings())
		})
	}
}

// A PersistentVolume is set to Retain and back while the watch hangs. The disk may have been used meanwhile, so its
// erasure starts from the beginning.
func TestCleaningBeginsAnewAfterAChangeThatTheWatchDidNotShow(t *testing.T) {
	t.Parallel()
	r, disks := newDiscoveryRig(t)
	r.offered()
	begun, stopped := make(chan struct{}), make(chan struct{})
	disks.with(func() {
		disks.cleaning = func(ctx context.Context, progress func(int64) error) error {
			disks.with(func() { disks.cleaning = nil })
			err := progress(4096)
			close(begun)
			<-ctx.Done()
			close(stopped)
			return errors.Join(err, ctx.Err())
		}
	})
	r.api.put(static("pv-1", pvReleased))
	look := r.mounts()
	r.start()
	waitFor(t, begun, "it does not begin to clean")
	r.api.with(func() { r.api.hung = true })
	r.api.put(static("pv-1", pvReleased, pvRetain))
	r.clock.pass(time.Minute)
	r.eventually(func() bool { look(); return isClosed(stopped) }, "it goes on cleaning")
	r.api.put(static("pv-1", pvReleased))
	r.eventually(func() bool { r.clock.pass(time.Minute); look(); return disks.cleanings() == 2 }, "it is not cleaned")
	disks.with(func() { require.Zero(t, disks.cleaned[1].Offset) })
}

// mounts returns a function that reports a change of the node's mounts to the daemon.
func (r *rig) mounts() (change func()) {
	var mu sync.Mutex
	var all []func()
	r.config.Mounts = func(ctx context.Context, changed func()) error {
		mu.Lock()
		all = append(all, changed)
		mu.Unlock()
		<-ctx.Done()
		return nil
	}
	return func() {
		mu.Lock()
		defer mu.Unlock()
		for _, changed := range all {
			changed()
		}
	}
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Pods mount all the time, so not every scan gets the node's labels; but every scan that may clean a disk does. A disk
// that is kept is not cleaned.
func TestNodeIsReadForScansThatMayClean(t *testing.T) {
	t.Parallel()
	r, disks := newDiscoveryRig(t)
	r.start()
	r.discoveredIs(flexlvmv1.DiscoveredReady)
	gets := func() int { return r.api.requests("get metadata of nodes") }
	before := gets()
	r.scans(disks, 3)
	require.Equal(t, before, gets())
	r.clock.pass(time.Minute)
	r.scans(disks, 1)
	require.Equal(t, before+1, gets())

	r.api.put(static("pv-1", pvReleased, pvRetain))
	r.discoveredIs(flexlvmv1.DiscoveredKept)
	before = gets()
	r.scans(disks, 2)
	require.Equal(t, before, gets())

	var blocked blockedCleaning
	disks.with(func() { blocked = blockCleaning(disks) })
	close(blocked.let)
	r.api.put(static("pv-1", pvReleased))
	waitFor(t, blocked.begun, "it is not cleaned")
	before = gets()
	r.scans(disks, 2)
	require.GreaterOrEqual(t, gets(), before+2)
}
