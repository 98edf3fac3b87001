package nodeagent_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/volumegroup"
)

// newSharedRig has a discovered disk, and a node on which VolumeGroups are declared.
func newSharedRig(t *testing.T) (*rig, *fakeDisks, *fakeMaker) {
	r, disks := newDiscoveryRig(t)
	maker := &fakeMaker{}
	r.config.Groups = maker
	r.api.nodeLabels = map[string]string{"disks": "local"}
	return r, disks, maker
}

// confirmed reports whether the creation of a group was confirmed since the last call.
func (m *fakeMaker) confirmed() (yes bool) {
	m.with(func() {
		yes = slices.Contains(m.confirm, nil)
		m.confirm = nil
	})
	return yes
}

// refusedFor reports whether the creation of a group was refused for a reason that contains says.
func (m *fakeMaker) refusedFor(says string) (yes bool) {
	m.with(func() {
		yes = slices.ContainsFunc(m.confirm, func(err error) bool { return err != nil && strings.Contains(err.Error(), says) })
	})
	return yes
}

// A scan may offer the disks of a group, so no group is made during a scan. It is made after the scan.
func TestDeclaredGroupDuringAScan(t *testing.T) {
	t.Parallel()
	r, disks, maker := newSharedRig(t)
	r.start()
	r.discoveredIs(flexlvmv1.DiscoveredReady)
	scans, goOn := r.blockScans(disks)
	r.api.putDiscovery()
	waitFor(t, scans, "it does not scan")
	r.api.putGroup(volumeGroup("a"))
	r.eventually(func() bool { return maker.refusedFor("the disks are being examined for the VolumeDiscovery") }, "it is made during a scan")
	goOn()
	r.eventually(maker.confirmed, "it is never made")
}

// While a group is made, no scan runs: it would offer disks that are not yet part of the group.
func TestNoScanWhileAGroupIsCreated(t *testing.T) {
	t.Parallel()
	r, disks, maker := newSharedRig(t)
	r.start()
	r.discoveredIs(flexlvmv1.DiscoveredReady)
	scans := make(chan struct{}, 100)
	made := make(chan bool, 100)
	maker.with(func() {
		maker.answer = func(d volumegroup.Declaration) volumegroup.Outcome {
			out := volumegroup.Outcome{Name: d.Name, Group: d.Group, State: volumegroup.Made, Message: "made"}
			if maker.confirm[len(maker.confirm)-1] != nil {
				return out
			}
			disks.with(func() { disks.finding = func() { scans <- struct{}{} } })
			r.api.putDiscovery()
			select {
			case <-scans:
				made <- false
			case <-time.After(3 * time.Second): // longer than the pause between scans
				made <- true
			}
			return out
		}
	})
	r.api.putGroup(volumeGroup("a"))
	select {
	case alone := <-made:
		if !alone {
			t.Fatal("it scans while a group is made")
		}
	case <-time.After(soon):
		t.Fatal("no group is made")
	}
	waitFor(t, scans, "it never scans again")
}

// A group is made only if the last scan followed the current VolumeDiscovery.
func TestDeclaredGroupAfterAChangeOfTheDiscovery(t *testing.T) {
	t.Parallel()
	r, _, maker := newSharedRig(t)
	r.start()
	r.discoveredIs(flexlvmv1.DiscoveredReady)
	r.api.with(func() { r.api.discovery.Generation++ }) // no watch shows it
	r.api.putGroup(volumeGroup("a"))
	r.eventually(func() bool {
		return maker.refusedFor("the VolumeDiscovery has changed and the disks must be examined first")
	}, "it is made by an older one")
	r.eventually(func() bool { return strings.Contains(r.declaredStates(), "a ") }, "it is not reported")
	maker.with(func() { maker.confirm = nil })
	r.api.putDiscovery()
	r.eventually(maker.confirmed, "it is never made")
	r.api.with(func() { r.api.discovery.Generation++ })
	r.api.fail(500, "get volumediscoveries")
	maker.with(func() { maker.confirm = nil })
	r.api.putGroup(volumeGroup("a"))
	r.eventually(func() bool { return maker.refusedFor("get VolumeDiscovery flexlvm") }, "it is made though nobody knows")
}

// Groups are made if nothing is discovered: without a VolumeDiscovery, and with one that finds no disk.
func TestDeclaredGroupWhereNothingIsDiscovered(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(r *rig, disks *fakeDisks){
		"no VolumeDiscovery": func(r *rig, _ *fakeDisks) { r.api.discovery = nil },
		"no disk":            func(_ *rig, disks *fakeDisks) { disks.found = nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, disks, maker := newSharedRig(t)
			change(r, disks)
			r.start()
			r.api.putGroup(volumeGroup("a"))
			r.eventually(maker.confirmed, "it is never made")
		})
	}
}
