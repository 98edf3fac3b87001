package nodeagent_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// What another PersistentVolume has as well is not cleaned, whoever made that.
func TestDiscoveredThatAnotherHasIsNotCleaned(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(v *corev1.PersistentVolume){
		"the path": func(v *corev1.PersistentVolume) { v.Labels, v.Annotations = nil, nil },
		"a path below": func(v *corev1.PersistentVolume) {
			v.Labels, v.Annotations, v.Spec.Local.Path = nil, nil, "/mnt/fast/a/b"
		},
		"the disk, on another node": func(v *corev1.PersistentVolume) {
			v.Labels[flexlvmv1.LabelDiscoveredOn], v.Spec.Local.Path = "node-2", "/mnt/fast/z"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, disks := newDiscoveryRig(t)
			r.offered()
			other := static("pv-other", change)
			other.Name = "other"
			r.api.put(other)
			r.api.put(static("pv-1", pvReleased))
			r.start()
			r.eventually(func() bool {
				all := r.status().Discovered
				return len(all) == 1 && strings.Contains(all[0].Message, "PersistentVolume other has it as well")
			}, "it does not say why")
			require.Zero(t, disks.cleanings())
		})
	}
}

// A disk whose link was renamed is not offered a second time.
func TestDiscoveredAtAnotherPath(t *testing.T) {
	t.Parallel()
	r, disks := newDiscoveryRig(t)
	disks.found[0].Path = "/mnt/fast/renamed"
	r.api.put(static("pv-1"))
	r.start()
	r.eventually(func() bool {
		all := r.status().Discovered
		return len(all) == 2 && all[1].State == flexlvmv1.DiscoveredRefused && strings.Contains(all[1].Message, "PersistentVolume static-a has this disk at /mnt/fast/a")
	}, "it is offered twice")
}

// What was ready and is taken by somebody before it has a PersistentVolume is ready no more.
func TestDiscoveredIsTakenBeforeItHasAPersistentVolume(t *testing.T) {
	t.Parallel()
	r, disks := newDiscoveryRig(t)
	r.start()
	r.discoveredIs(flexlvmv1.DiscoveredReady)
	disks.with(func() { disks.owned = errors.New("it is part of dm-3") })
	r.api.putDiscovery()
	require.Equal(t, "it is part of dm-3", r.discoveredIs(flexlvmv1.DiscoveredRefused).Message)
	disks.with(func() { disks.owned = nil })
	r.api.putDiscovery()
	require.EqualValues(t, 2, r.discoveredIs(flexlvmv1.DiscoveredReady).Offer)
}
