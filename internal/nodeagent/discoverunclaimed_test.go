package nodeagent_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/discovery"
	"github.com/flexlvm/flexlvm/internal/disk"
)

func available(v *corev1.PersistentVolume) {
	v.Spec.ClaimRef, v.Status.Phase = nil, corev1.VolumeAvailable
}

// A PersistentVolume without a claim that an earlier version has created of a device with data is refused. If the
// device only cannot be checked, the PersistentVolume stays. A blank device is not read again.
func TestDiscoveredWithoutAClaim(t *testing.T) {
	t.Parallel()
	r, disks := newDiscoveryRig(t)
	require.NoError(t, discovery.Ledger{"naa.5000": {Path: "/mnt/fast/a", Offer: 2, Volume: "pv-0", Claim: "claim-0", Cleaned: []string{"pv-0"}, Erasure: discovery.Discard}}.Write(r.config.DiscoveredFile))
	disks.owned = fmt.Errorf("kubelet would format it: %w", disk.ErrNotZero)
	r.api.put(static("pv-1", available))
	r.start()
	refused := r.discoveredIs(flexlvmv1.DiscoveredRefused)
	require.Equal(t, "PersistentVolume static-a has no claim yet and is deleted before one is bound: kubelet would format it: does not read as zeros", refused.Message)
	require.Equal(t, "pv-1", refused.PersistentVolumeUID)
	require.True(t, refused.Withdrawn)
	disks.with(func() { disks.failed = errors.New("no mounts") })
	r.eventually(func() bool {
		r.api.putDiscovery()
		all := r.status().Discovered
		return len(all) == 1 && !all[0].Withdrawn && strings.Contains(all[0].Message, "no mounts")
	}, "it is withdrawn though nobody can look")
	disks.with(func() { disks.failed = nil })
	r.eventually(func() bool { return len(r.api.told("DiskRefused")) > 0 }, "nobody is told")
	disks.with(func() {
		require.Equal(t, "pv-0", disks.offered[0].Volume, "it was discarded after that, and no claim has had it since")
		require.False(t, disks.of.Block)
		disks.owned = errors.New("it is mounted on /mnt/look")
	})
	r.api.putDiscovery()
	require.False(t, r.discoveredIs(flexlvmv1.DiscoveredProvided).Withdrawn)
	looks := func() (n int) {
		disks.with(func() { n = len(disks.offered) })
		return n
	}
	var before int
	disks.with(func() { disks.owned, before = nil, len(disks.offered) })
	r.api.putDiscovery()
	r.eventually(func() bool { return looks() == before+1 }, "it is not looked at")
	disks.with(func() { disks.owned = fmt.Errorf("it is read again: %w", disk.ErrNotZero) })
	r.api.put(static("pv-1", available, func(v *corev1.PersistentVolume) { v.Labels["a"] = "b" }))
	r.api.put(static("pv-1"))
	r.eventually(func() bool {
		noted, err := discovery.ReadLedger(r.config.DiscoveredFile)
		return err == nil && noted["naa.5000"].Claim == "uid-of-claim"
	}, "it is not noted who has it")
	require.Equal(t, before+1, looks())
	r.discoveredIs(flexlvmv1.DiscoveredProvided)
}
