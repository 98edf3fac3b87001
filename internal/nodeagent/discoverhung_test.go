package nodeagent_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/discovery"
)

// discoveredAt returns the NodeStorage's entry of a path.
func (r *rig) discoveredAt(path string) (out flexlvmv1.Discovered) {
	for _, one := range r.status().Discovered {
		if one.Path == path {
			out = one
		}
	}
	return out
}

// hangingDisk makes the scan of the disk at /mnt/fast/b hang until goOn is called, after its PersistentVolume was
// deleted.
func (r *rig) hangingDisk(disks *fakeDisks) (hangs chan struct{}, goOn func()) {
	r.t.Helper()
	hangs = make(chan struct{})
	let := make(chan struct{})
	hang := sync.OnceFunc(func() {
		close(hangs)
		<-let
	})
	disks.with(func() { disks.emptying = hang })
	goOn = sync.OnceFunc(func() { close(let) })
	r.t.Cleanup(goOn)
	r.api.put(static("pv-b", func(v *corev1.PersistentVolume) {
		v.Name, v.Annotations[flexlvmv1.AnnotationDisk], v.Spec.Local.Path = "static-b", "naa.6000", "/mnt/fast/b"
	}))
	r.eventually(func() bool { return r.discoveredAt("/mnt/fast/b").State == flexlvmv1.DiscoveredProvided }, "it is not provided")
	r.api.remove("static-b")
	return hangs, goOn
}

// newHangingRig has a disk that is being cleaned, one for hangingDisk, and one that is ready.
func newHangingRig(t *testing.T) (*rig, *fakeDisks, blockedCleaning) {
	r, disks := newDiscoveryRig(t)
	r.offered()
	disks.found = append(disks.found,
		discovery.Found{Class: "fast", Path: "/mnt/fast/b", Kind: discovery.Device, Disk: "naa.6000", Size: 1 << 30},
		discovery.Found{Class: "fast", Path: "/mnt/fast/c", Kind: discovery.Device, Disk: "naa.7000", Size: 1 << 30})
	blocked := blockCleaning(disks)
	close(blocked.let)
	r.api.put(static("pv-1", pvReleased))
	r.start()
	waitFor(t, blocked.begun, "it does not begin to clean")
	r.eventually(func() bool { return r.discoveredAt("/mnt/fast/c").State == flexlvmv1.DiscoveredReady }, "it is not ready")
	return r, disks, blocked
}

// A scan of one disk hangs. Cleanings are still confirmed. After some minutes the scan counts as failed: its results
// may be outdated, so no disk is ready, and cleanings stop.
func TestScanThatHangs(t *testing.T) {
	t.Parallel()
	r, disks, blocked := newHangingRig(t)
	hangs, goOn := r.hangingDisk(disks)
	waitFor(t, hangs, "it does not look whether the disk is empty")
	gets := r.api.requests("get persistentvolumes")
	r.clock.pass(2 * time.Minute)
	r.eventually(func() bool { return r.api.requests("get persistentvolumes") > gets }, "the cleaning is not confirmed")
	require.False(t, isClosed(blocked.stopped))
	require.Equal(t, flexlvmv1.DiscoveredReady, r.discoveredAt("/mnt/fast/c").State)

	r.clock.pass(4 * time.Minute)
	refused := func() bool { return r.discoveredAt("/mnt/fast/c").State == flexlvmv1.DiscoveredRefused }
	r.eventually(refused, "it is ready still")
	require.Contains(t, r.discoveredAt("/mnt/fast/c").Message, "has not ended within 5m0s, and is at /mnt/fast/b")
	r.eventually(func() bool { return len(r.api.told("DiscoveryFailed")) > 0 }, "nobody is told")
	waitFor(t, blocked.stopped, "it goes on cleaning")

	// The results of the hung scan are dropped, and the disks are scanned again.
	scans, goOnScanning := r.blockScans(disks)
	goOn()
	waitFor(t, scans, "it does not scan again")
	r.rounds(2)
	require.True(t, refused(), "it is ready by an old scan")
	disks.with(func() { disks.cleaning = nil })
	goOnScanning()
	r.eventually(func() bool { return !refused() }, "it is not ready again")
	r.clock.pass(time.Minute) // the backoff of the stopped cleaning
	r.eventually(func() bool { return r.discoveredAt("/mnt/fast/a").State == flexlvmv1.DiscoveredCleaned }, "it is not cleaned")
}

// A cleaning that the API server does not confirm while a scan hangs is stopped.
func TestCleaningIsNotConfirmedWhileAScanHangs(t *testing.T) {
	t.Parallel()
	r, disks, blocked := newHangingRig(t)
	hangs, _ := r.hangingDisk(disks)
	waitFor(t, hangs, "it does not look whether the disk is empty")
	r.api.fail(500, "get persistentvolumes")
	r.clock.pass(time.Minute)
	waitFor(t, blocked.stopped, "it goes on cleaning")
}

// A stopping daemon does not wait for a hung scan.
func TestDaemonEndsWhileAScanHangs(t *testing.T) {
	t.Parallel()
	r, disks := newDiscoveryRig(t)
	scans, _ := r.blockScans(disks)
	stop := r.start()
	waitFor(t, scans, "it does not scan")
	ended := make(chan struct{})
	go func() { stop(); close(ended) }()
	waitFor(t, ended, "it waits for the scan")
}
