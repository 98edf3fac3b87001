package nodeagent_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/discovery"
	"github.com/flexlvm/flexlvm/internal/volumegroup"
)

// newTwoClasses adds a class "slow" with a released disk to newDiscoveryRig.
func newTwoClasses(t *testing.T) (*rig, *fakeDisks) {
	r, disks := newDiscoveryRig(t)
	r.api.discovery.Spec.Classes = append(r.api.discovery.Spec.Classes, flexlvmv1.DiscoveryClass{StorageClassName: "slow", Directory: "/mnt/slow"})
	disks.found = append(disks.found, discovery.Found{Class: "slow", Path: "/mnt/slow/b", Kind: discovery.Device, Disk: "naa.6000", Size: 1 << 30})
	require.NoError(t, discovery.Ledger{"naa.5000": {Path: "/mnt/fast/a", Offer: 1}, "naa.6000": {Path: "/mnt/slow/b", Offer: 1}}.Write(r.config.DiscoveredFile))
	r.api.put(static("pv-2", pvReleased, func(v *corev1.PersistentVolume) {
		v.Name, v.Spec.StorageClassName, v.Spec.Local.Path = "static-b", "slow", "/mnt/slow/b"
		v.Annotations[flexlvmv1.AnnotationDisk] = "naa.6000"
	}))
	return r, disks
}

// statesAt returns the states of the discovered disks by path, and all messages.
func (r *rig) statesAt() (states map[string]flexlvmv1.DiscoveredState, messages string) {
	states = map[string]flexlvmv1.DiscoveredState{}
	for _, one := range r.status().Discovered {
		states[one.Path] = one.State
		messages += one.Message + "\n"
	}
	return states, messages
}

// A class that cannot be scanned holds up its own disks and no others, and the report shows why.
func TestOneClassThatCannotBeLookedAt(t *testing.T) {
	t.Parallel()
	for says, spoil := range map[string]func(r *rig, disks *fakeDisks){
		"the directory cannot be read": func(_ *rig, disks *fakeDisks) {
			disks.unseen = map[string]error{"slow": errors.New("the directory cannot be read")}
		},
		"one of which contains the other": func(r *rig, _ *fakeDisks) {
			r.api.discovery.Spec.Classes = append(r.api.discovery.Spec.Classes, flexlvmv1.DiscoveryClass{StorageClassName: "nested", Directory: "/mnt/slow/b"})
		},
		`cleanDevice is "Shred", which this version does not know`: func(r *rig, _ *fakeDisks) {
			r.api.discovery.Spec.Classes[1].CleanDevice = "Shred"
		},
		`accessMode is "ReadMostly", which this version does not know`: func(r *rig, _ *fakeDisks) {
			r.api.discovery.Spec.Classes[1].AccessMode = "ReadMostly"
		},
		`cleanFilesystem is "Archive", which this version does not know`: func(r *rig, _ *fakeDisks) {
			r.api.discovery.Spec.Classes[1].CleanFilesystem = "Archive"
		},
		"nodeSelector": func(r *rig, _ *fakeDisks) {
			r.api.discovery.Spec.Classes[1].NodeSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}
		},
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			r, disks := newTwoClasses(t)
			spoil(r, disks)
			r.api.put(static("pv-1", pvReleased))
			r.start()
			r.eventually(func() bool {
				states, messages := r.statesAt()
				return states["/mnt/fast/a"] == flexlvmv1.DiscoveredCleaned && states["/mnt/slow/b"] == flexlvmv1.DiscoveredRefused && strings.Contains(messages, says)
			}, "the other class is stopped as well")
			states, _ := r.statesAt()
			require.Equal(t, flexlvmv1.DiscoveredRefused, states["/mnt/slow"], "the class says so")
			require.Equal(t, 1, disks.cleanings())
			r.eventually(func() bool {
				return strings.Contains(strings.Join(r.api.told("DiscoveryFailed"), "\n"), "class slow of the VolumeDiscovery")
			}, "nobody is told")
		})
	}
}

// A cleaning stops when its class can no longer be scanned, and resumes when it can.
func TestOneClassThatCannotBeLookedAtMeanwhile(t *testing.T) {
	t.Parallel()
	r, disks := newTwoClasses(t)
	blocked := blockCleaning(disks)
	r.start()
	waitFor(t, blocked.begun, "it does not begin to clean")
	disks.with(func() { disks.unseen = map[string]error{"slow": errors.New("the directory cannot be read")} })
	r.api.putDiscovery()
	waitFor(t, blocked.stopped, "it goes on cleaning")
	close(blocked.let)
	disks.with(func() { disks.unseen, disks.cleaning = nil, nil })
	r.api.putDiscovery()
	r.eventually(func() bool {
		states, _ := r.statesAt()
		return states["/mnt/slow/b"] == flexlvmv1.DiscoveredCleaned
	}, "it does not go on")
}

// No group is made of disks that are discovered volumes. A disk that was one is passed on as such, because only a
// person may allow it. No group is made before the disks are known, or when they change meanwhile.
func TestDeclaredGroupsAndDiscoveredDisks(t *testing.T) {
	t.Parallel()
	r, disks := newDiscoveryRig(t)
	require.NoError(t, discovery.Ledger{"naa.was": {Path: "/mnt/fast/old", Offer: 3}}.Write(r.config.DiscoveredFile))
	r.api.nodeLabels = map[string]string{"disks": "local"}
	maker := &fakeMaker{}
	r.config.Groups = maker
	r.api.putGroup(volumeGroup("a"))
	r.start()
	r.eventually(func() bool { return maker.calls() > 0 }, "nothing is made")
	first := func() (out volumegroup.Discovered) {
		maker.with(func() { out = maker.asked[len(maker.asked)-1][0].Discovered })
		return out
	}
	r.eventually(func() bool {
		r.api.putGroup(volumeGroup("a"))
		return first().Equal(volumegroup.Discovered{Disks: map[string]bool{"naa.5000": true, "naa.was": false}})
	}, "it does not know the disks")
	maker.with(func() { require.Empty(t, maker.asked[0][0].Discovered.Unknown) })

	// A class that cannot be scanned may contain any disk.
	disks.with(func() { disks.unseen = map[string]error{"fast": errors.New("the directory cannot be read")} })
	r.api.putDiscovery()
	r.eventually(func() bool {
		r.api.putGroup(volumeGroup("a"))
		return strings.Contains(first().Unknown, "class fast of the VolumeDiscovery cannot be examined: the directory cannot be read")
	}, "groups are made of what nobody has looked at")
	disks.with(func() { disks.unseen = nil })
	r.api.putDiscovery()
	r.eventually(func() bool {
		r.api.putGroup(volumeGroup("a"))
		return first().Unknown == ""
	}, "it does not go on")

	n := 0
	maker.with(func() {
		maker.before = func() {
			n++
			r.api.put(static("pv-1", func(v *corev1.PersistentVolume) {
				v.Annotations[flexlvmv1.AnnotationDisk] = fmt.Sprintf("naa.new-%d", n)
			}))
			time.Sleep(100 * time.Millisecond) // time for the watch to show it
		}
	})
	r.eventually(func() (changed bool) {
		r.api.putGroup(volumeGroup("a"))
		maker.with(func() {
			changed = slices.ContainsFunc(maker.confirm, func(err error) bool {
				return err != nil && strings.Contains(err.Error(), "have changed meanwhile; they are examined again")
			})
		})
		return changed
	}, "it is made whatever has changed meanwhile")
}
