package nodeagent_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/discovery"
)

// blockedCleaning makes a cleaning last until it is stopped, and then until the test closes let.
type blockedCleaning struct{ begun, stopped, let chan struct{} }

func blockCleaning(disks *fakeDisks) blockedCleaning {
	b := blockedCleaning{begun: make(chan struct{}), stopped: make(chan struct{}), let: make(chan struct{})}
	disks.cleaning = func(ctx context.Context, _ func(int64) error) error {
		close(b.begun)
		<-ctx.Done()
		close(b.stopped)
		select {
		case <-b.let:
		case <-time.After(soon): // the test has failed
		}
		return ctx.Err()
	}
	return b
}

func waitFor(t testing.TB, c chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(soon):
		t.Fatal(what)
	}
}

// If two PersistentVolumes have the same path, neither is cleaned.
func TestDiscoveredTwice(t *testing.T) {
	t.Parallel()
	r, disks := newDiscoveryRig(t)
	r.offered()
	r.api.put(static("pv-1", pvReleased))
	r.api.put(static("pv-2", pvReleased, func(v *corev1.PersistentVolume) { v.Name = "static-b" }))
	r.start()
	said := r.discoveredIs(flexlvmv1.DiscoveredRefused).Message
	require.Contains(t, said, "static-a")
	require.Contains(t, said, "static-b")
	require.Zero(t, disks.cleanings())
	r.api.remove("static-b")
	require.Equal(t, "pv-1", r.discoveredIs(flexlvmv1.DiscoveredCleaned).PersistentVolumeUID)
}

// While scans fail, no disk is cleaned, and a disk that was ready no longer is.
func TestDiscoveredWhileScansFail(t *testing.T) {
	t.Parallel()
	r, disks := newDiscoveryRig(t)
	r.start()
	offer := r.discoveredIs(flexlvmv1.DiscoveredReady).Offer
	disks.with(func() { disks.failed = errors.New("the directory cannot be read") })
	r.api.putDiscovery()
	require.Contains(t, r.discoveredIs(flexlvmv1.DiscoveredRefused).Message, "the directory cannot be read")
	disks.with(func() { disks.failed = nil })
	r.api.putDiscovery()
	require.Equal(t, offer, r.discoveredIs(flexlvmv1.DiscoveredReady).Offer)

	blocked := blockCleaning(disks)
	close(blocked.let)
	r.api.put(static("pv-1", pvReleased))
	waitFor(t, blocked.begun, "it does not begin to clean")
	disks.with(func() { disks.failed = errors.New("the directory cannot be read") })
	r.api.putDiscovery()
	waitFor(t, blocked.stopped, "it goes on cleaning")
}

// A process that cannot scan does not repeat the states that an earlier process reported.
func TestDiscoveredByAnEarlierProcess(t *testing.T) {
	t.Parallel()
	r, _ := newDiscoveryRig(t)
	stop := r.start()
	r.discoveredIs(flexlvmv1.DiscoveredReady)
	stop()
	require.NoError(t, os.WriteFile(r.config.DiscoveredFile, []byte("{"), 0o600))
	r.start()
	r.discoveredIs(flexlvmv1.DiscoveredRefused)
}

// Setting Retain stops an erasure immediately, not at the next scan. If the volume may be erased again later, the
// erasure starts from the beginning: the kept disk may have been written to.
func TestDiscoveredIsKeptWhileItIsErased(t *testing.T) {
	t.Parallel()
	r, disks := newDiscoveryRig(t)
	r.offered()
	blocked := blockCleaning(disks)
	close(blocked.let)
	cleaning := disks.cleaning
	disks.cleaning = func(ctx context.Context, progress func(int64) error) error {
		return errors.Join(progress(64<<20), cleaning(ctx, progress))
	}
	r.api.put(static("pv-1", pvReleased))
	r.start()
	waitFor(t, blocked.begun, "it does not begin to clean")
	scans, goOn := r.blockScans(disks)
	r.api.putDiscovery()
	waitFor(t, scans, "it does not scan")
	r.api.put(static("pv-1", pvReleased, pvRetain))
	waitFor(t, blocked.stopped, "it goes on cleaning")
	goOn()
	require.Equal(t, "pv-1", r.discoveredIs(flexlvmv1.DiscoveredKept).PersistentVolumeUID)
	require.Equal(t, 1, disks.cleanings())

	r.eventually(func() bool {
		noted, err := discovery.ReadLedger(r.config.DiscoveredFile)
		return err == nil && noted["naa.5000"].Offset == 0
	}, "it is to go on where it was")
	disks.with(func() { disks.cleaning = nil })
	r.api.put(static("pv-1", pvReleased))
	r.clock.pass(time.Hour) // the backoff of the stopped cleaning
	r.discoveredIs(flexlvmv1.DiscoveredCleaned)
	require.Equal(t, 2, disks.cleanings())
	disks.with(func() { require.Zero(t, disks.cleaned[1].Offset) })
}

// While a disk was away, or its path had two PersistentVolumes, the erased part of the disk may have been written to.
// Its erasure starts from the beginning.
func TestErasureBeginsAnewAfterOthersMayHaveUsedTheDisk(t *testing.T) {
	t.Parallel()
	for name, used := range map[string]func(*rig, *fakeDisks){
		"away": func(_ *rig, disks *fakeDisks) { disks.found = nil },
		"unnamed": func(_ *rig, disks *fakeDisks) {
			disks.found[0].Disk, disks.found[0].Problem = "", "nothing is mounted here"
		},
		"another": func(_ *rig, disks *fakeDisks) { disks.found[0].Disk = "naa.6000" },
		"shared": func(r *rig, _ *fakeDisks) {
			r.api.put(static("pv-2", func(v *corev1.PersistentVolume) { v.Name = "static-b" }))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, disks := newDiscoveryRig(t)
			require.NoError(t, discovery.Ledger{"naa.5000": {Path: "/mnt/fast/a", Offer: 1, Volume: "pv-1", Offset: 64 << 20}}.Write(r.config.DiscoveredFile))
			r.api.put(static("pv-1", pvReleased))
			used(r, disks)
			r.start()
			r.eventually(func() bool {
				noted, err := discovery.ReadLedger(r.config.DiscoveredFile)
				return err == nil && noted["naa.5000"].Offset == 0
			}, "it is to go on where it was")
			require.Zero(t, disks.cleanings())
		})
	}
}

// A disk whose cleaning has not stopped yet is not offered, even if its PersistentVolume is gone.
func TestDiscoveredWhileItsCleaningEnds(t *testing.T) {
	t.Parallel()
	r, disks := newDiscoveryRig(t)
	r.offered()
	blocked := blockCleaning(disks)
	r.api.put(static("pv-1", pvReleased))
	r.start()
	waitFor(t, blocked.begun, "it does not begin to clean")
	r.api.remove("static-a")
	waitFor(t, blocked.stopped, "it goes on cleaning")
	r.eventually(func() bool {
		all := r.status().Discovered
		return len(all) == 1 && all[0].State == flexlvmv1.DiscoveredCleaning && all[0].Message == "its cleaning is about to end"
	}, "it does not say that the cleaning is ending")
	close(blocked.let)
	r.discoveredIs(flexlvmv1.DiscoveredReady)
}

// An erasure that failed because the disk was in use starts from the beginning: its user may have written to the
// erased part.
func TestDiscoveredIsUsedWhileItIsErased(t *testing.T) {
	t.Parallel()
	r, disks := newDiscoveryRig(t)
	require.NoError(t, discovery.Ledger{"naa.5000": {Path: "/mnt/fast/a", Offer: 1, Volume: "pv-1", Claim: "uid-of-claim", Offset: 512, Erasure: discovery.Zero}}.Write(r.config.DiscoveredFile))
	disks.cleaning = func(context.Context, func(int64) error) error { return errors.New("it is mounted") }
	r.api.put(static("pv-1", pvReleased))
	r.start()
	r.eventually(func() bool {
		noted, err := discovery.ReadLedger(r.config.DiscoveredFile)
		return err == nil && disks.cleanings() > 0 && noted["naa.5000"].Offset == 0
	}, "it would go on in the middle")
}

// An erasure resumes only with the method it was started with.
func TestDiscoveredIsErasedInOneWay(t *testing.T) {
	t.Parallel()
	r, disks := newDiscoveryRig(t)
	require.NoError(t, discovery.Ledger{"naa.5000": {Path: "/mnt/fast/a", Offer: 1, Volume: "pv-1", Claim: "uid-of-claim", Offset: 512, Erasure: discovery.Discard}}.Write(r.config.DiscoveredFile))
	r.api.put(static("pv-1", pvReleased))
	r.start()
	r.discoveredIs(flexlvmv1.DiscoveredCleaned)
	disks.with(func() {
		require.Len(t, disks.cleaned, 1)
		require.Zero(t, disks.cleaned[0].Offset)
	})
}
