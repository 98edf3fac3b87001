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

// blockedCleaning has cleanings last until they are stopped, and then until the test lets them
// end.
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

// Two PersistentVolumes of one path: of neither anything is cleaned.
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

// While nobody can look, nothing is cleaned, and what was ready is not.
func TestDiscoveredWhileNobodyCanLook(t *testing.T) {
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

// What an earlier process said is not held for true by a process that cannot look.
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

// Who keeps what is left of a volume that is being erased does not wait for the next look. Once it may
// be erased after all, that begins anew: what was kept may have been written to.
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
	looks, goOn := r.blockLooks(disks)
	r.api.putDiscovery()
	waitFor(t, looks, "it does not look")
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
	r.clock.pass(time.Hour) // the cleaning that the change has stopped may have to wait
	r.discoveredIs(flexlvmv1.DiscoveredCleaned)
	require.Equal(t, 2, disks.cleanings())
	disks.with(func() { require.Zero(t, disks.cleaned[1].Offset) })
}

// A disk that was away, or whose path had two PersistentVolumes, may have been written to where it
// was erased.
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

// A disk that is still being cleaned is not offered, also where its PersistentVolume is gone.
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

// An erasure that somebody's use has ended begins anew: they may have written to what is erased.
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

// An erasure goes on only in the way in which it was begun.
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
