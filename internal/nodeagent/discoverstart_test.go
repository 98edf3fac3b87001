package nodeagent_test

import (
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/volumegroup"
)

// watchesDiscovered reports whether the node watches its discovered PersistentVolumes.
func (r *rig) watchesDiscovered() bool {
	return r.api.requests("watch discovered persistentvolumes")+r.api.requests("list discovered persistentvolumes") > 0
}

// withoutDiscovery removes the VolumeDiscovery, which is put back by the returned function.
func (r *rig) withoutDiscovery() (add func()) {
	later := r.api.discovery
	r.api.discovery = nil
	return func() {
		r.api.with(func() {
			r.api.discovery = later
			r.api.changed("ADDED", later)
		})
	}
}

// Where nothing is discovered, the discovered PersistentVolumes are not watched. Once there is a VolumeDiscovery, they
// are, and no disk is offered before they have been read.
func TestDiscoveredVolumesAreWatchedWhenNeeded(t *testing.T) {
	t.Parallel()
	r, _ := newDiscoveryRig(t)
	add := r.withoutDiscovery()
	r.start()
	r.eventually(r.readyIs("Ready"), "not ready")
	r.rounds(5)
	require.False(t, r.watchesDiscovered())

	r.api.put(static("pv-1"))
	r.api.fail(http.StatusInternalServerError, "list discovered persistentvolumes", "watch discovered persistentvolumes")
	add()
	r.eventually(r.watchesDiscovered, "they are not watched")
	r.rounds(5)
	require.Empty(t, r.status().Discovered)
	r.api.mend()
	require.Equal(t, "pv-1", r.discoveredIs(flexlvmv1.DiscoveredProvided).PersistentVolumeUID)
}

// A node that has had discovered disks watches their PersistentVolumes although there is no VolumeDiscovery.
func TestDiscoveredVolumesAreWatchedAfterwards(t *testing.T) {
	t.Parallel()
	r, _ := newDiscoveryRig(t)
	r.api.put(static("pv-1"))
	stop := r.start()
	r.discoveredIs(flexlvmv1.DiscoveredProvided)
	stop()
	for name, change := range map[string]func(){
		"the ledger": func() {},
		"the report": func() { r.config.DiscoveredFile = filepath.Join(t.TempDir(), "discovered.json") },
	} {
		change()
		before := r.api.requests("watch discovered persistentvolumes") + r.api.requests("list discovered persistentvolumes")
		r.api.with(func() { r.api.discovery = nil })
		stop := r.start()
		r.eventually(func() bool {
			return r.api.requests("watch discovered persistentvolumes")+r.api.requests("list discovered persistentvolumes") > before
		}, "%s is not enough", name)
		stop()
	}
}

// A VolumeGroup gets no disk of a discovered PersistentVolume, although nothing else is left of the discovery.
func TestDeclaredGroupAndAForgottenDiscovery(t *testing.T) {
	t.Parallel()
	r, _, maker := newSharedRig(t)
	r.withoutDiscovery()
	r.start()
	r.eventually(r.readyIs("Ready"), "not ready")
	r.rounds(2)
	r.api.put(static("pv-1"))
	r.api.putGroup(volumeGroup("a"))
	r.eventually(func() bool { return maker.calls() > 0 }, "nothing is made")
	maker.with(func() {
		require.Equal(t, volumegroup.Discovered{Disks: map[string]bool{"naa.5000": true}}, maker.asked[0][0].Discovered)
	})
}

// Scans end with the daemon.
func TestScansEnd(t *testing.T) {
	t.Parallel()
	r, disks := newDiscoveryRig(t)
	var scans atomic.Int32
	disks.finding = func() { scans.Add(1) }
	stop := r.start()
	r.discoveredIs(flexlvmv1.DiscoveredReady)
	stop()
	n := scans.Load()
	require.Never(t, func() bool { return scans.Load() > n+1 }, 200*time.Millisecond, 10*time.Millisecond)
}
