package nodeagent_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/internal/volumegroup"
)

// fakeMaker stands in for the engine.
type fakeMaker struct {
	mu      sync.Mutex
	asked   [][]volumegroup.Declaration
	confirm []error // what confirm has returned
	// answer returns the outcome of a declaration; nil: each group is made.
	answer func(volumegroup.Declaration) volumegroup.Outcome
	err    error
	// before is called before confirm.
	before func()
	// hangs blocks MakeDeclared until its time is up.
	hangs bool
	// loops is the error of AttachLoops.
	loops error
}

func (m *fakeMaker) AttachLoops(context.Context) (err error) {
	m.with(func() { err = m.loops })
	return err
}

func (m *fakeMaker) MakeDeclared(ctx context.Context, all []volumegroup.Declaration, confirm func(context.Context, volumegroup.Declaration) error) (out []volumegroup.Outcome, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked = append(m.asked, all)
	if m.hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if m.before != nil {
		m.before()
	}
	for _, d := range all {
		m.confirm = append(m.confirm, confirm(ctx, d))
		o := volumegroup.Outcome{Name: d.Name, Group: d.Group, State: volumegroup.Made, Message: "made", Changed: len(m.asked) == 1}
		if m.answer != nil {
			o = m.answer(d)
		}
		out = append(out, o)
	}
	return out, m.err
}

// with runs f while it holds the lock.
func (m *fakeMaker) with(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

func (m *fakeMaker) calls() (n int) {
	m.with(func() { n = len(m.asked) })
	return n
}

func volumeGroup(name string, change ...func(*flexlvmv1.VolumeGroup)) *flexlvmv1.VolumeGroup {
	g := &flexlvmv1.VolumeGroup{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Spec: flexlvmv1.VolumeGroupSpec{
			Name: "vg-" + name, NodeSelector: metav1.LabelSelector{MatchLabels: map[string]string{"disks": "local"}},
			Disks: []flexlvmv1.DiskSelector{{Path: "/dev/sd*", MinSize: "900G"}},
		},
	}
	for _, c := range change {
		c(g)
	}
	return g
}

// putGroup adds or replaces a VolumeGroup.
func (a *fakeAPI) putGroup(g *flexlvmv1.VolumeGroup) {
	a.with(func() {
		kind := "MODIFIED"
		if a.groups[g.Name] == nil {
			kind = "ADDED"
		}
		a.groups[g.Name] = g.DeepCopy()
		a.changed(kind, a.groups[g.Name])
	})
}

func newGroupRig(t *testing.T) (*rig, *fakeMaker) {
	r, m := newRig(t), &fakeMaker{}
	r.config.Groups = m
	r.api.nodeLabels = map[string]string{"disks": "local"}
	return r, m
}

// declaredStates returns the state and message of each group in the NodeStorage.
func (r *rig) declaredStates() string {
	var out []string
	for _, g := range r.status().DeclaredGroups {
		out = append(out, fmt.Sprintf("%s %s: %s", g.Name, g.State, g.Message))
	}
	return strings.Join(out, "\n")
}

func TestDeclaredGroupsAreMadeAndReported(t *testing.T) {
	t.Parallel()
	r, m := newGroupRig(t)
	m.answer = func(d volumegroup.Declaration) volumegroup.Outcome {
		if d.Name == "slow" {
			return volumegroup.Outcome{Name: d.Name, Group: d.Group, State: volumegroup.Refused, Message: "none", Refused: []volumegroup.Refusal{{Disk: volumegroup.Disk{ID: "serial-2", Path: "/dev/sdc"}, Reason: "it has a partition"}}}
		}
		return volumegroup.Outcome{Name: d.Name, Group: d.Group, State: volumegroup.Made, Message: "made", Changed: true, Members: []volumegroup.Disk{{ID: "serial-1", Path: "/dev/sdb"}}}
	}
	r.api.putGroup(volumeGroup("fast", func(g *flexlvmv1.VolumeGroup) {
		g.Annotations = map[string]string{flexlvmv1.AnnotationTakeAgain: "serial-1, serial-2@monday"}
		g.Spec.ThinPool = &flexlvmv1.ThinPoolSpec{Name: "thinpool", Size: "1Gi"}
		g.Spec.Extend = true
	}))
	r.api.putGroup(volumeGroup("slow"))
	r.api.putGroup(volumeGroup("elsewhere", func(g *flexlvmv1.VolumeGroup) { g.Spec.NodeSelector.MatchLabels["disks"] = "none" }))
	r.api.putGroup(volumeGroup("everywhere", func(g *flexlvmv1.VolumeGroup) { g.Spec.NodeSelector = metav1.LabelSelector{} }))
	r.api.putGroup(volumeGroup("withdrawn", func(g *flexlvmv1.VolumeGroup) { g.DeletionTimestamp = &metav1.Time{Time: time.Now()} }))
	r.start()
	r.eventually(func() bool { return r.declaredStates() == "fast Made: made\nslow Refused: none" }, "%s", r.declaredStates())
	groups := r.status().DeclaredGroups
	require.Equal(t, []flexlvmv1.DeclaredDisk{{ID: "serial-1", Path: "/dev/sdb"}}, groups[0].Disks)
	require.Equal(t, []flexlvmv1.DeclaredDisk{{ID: "serial-2", Path: "/dev/sdc", Reason: "it has a partition"}}, groups[1].Refused)
	m.with(func() {
		last := m.asked[len(m.asked)-1]
		require.Len(t, last, 2)
		require.Equal(t, volumegroup.Declaration{
			Name: "fast", Group: "vg-fast", Selectors: []volumegroup.Selector{{Path: "/dev/sd*", MinSize: 900_000_000_000}},
			ThinPool: "thinpool", ThinSize: volume.GiB, Extend: true, ReuseDisks: []string{"serial-1", "serial-2@monday"},
		}, last[0])
		require.NoError(t, errors.Join(m.confirm...))
	})
	r.eventually(func() bool {
		return len(r.api.told("VolumeGroupMade")) >= 2 && len(r.api.told("VolumeGroupRefused")) == 2
	}, "events: %v", r.api.told("VolumeGroupMade"))
	require.Contains(t, r.api.told("VolumeGroupMade"), "Node/node-1: VolumeGroup fast: made; /dev/sdb (serial-1)")
	require.Equal(t, []string{
		"Node/node-1: VolumeGroup slow: none; /dev/sdc: it has a partition",
		"VolumeGroup/slow: node node-1: none; /dev/sdc: it has a partition",
	}, r.api.told("VolumeGroupRefused"), "once, however often it is looked at")
}

// Disks are scanned at intervals, and immediately when a VolumeGroup changes, but not in every round.
func TestDeclaredGroupsAreLookedAtNowAndThen(t *testing.T) {
	t.Parallel()
	r, m := newGroupRig(t)
	r.start()
	r.eventually(r.readyIs("Ready"), "not ready")
	require.Zero(t, m.calls(), "nothing is declared")
	require.Zero(t, r.api.requests("list volumegroups"))

	r.api.putGroup(volumeGroup("fast"))
	r.eventually(func() bool { return m.calls() == 1 }, "not made")
	r.rounds(3)
	require.Equal(t, 1, m.calls())
	r.clock.pass(time.Minute)
	r.eventually(func() bool { return m.calls() == 2 }, "not looked at again")
	require.Equal(t, 1, r.api.requests("get nodes"), "more than the owner of the NodeStorage is read whole")
	r.api.putGroup(volumeGroup("fast", func(g *flexlvmv1.VolumeGroup) { g.Spec.Extend = true }))
	r.eventually(func() bool { return m.calls() == 3 }, "its change is not seen")
	r.eventually(func() bool { return r.declaredStates() == "fast Made: made" }, "%s", r.declaredStates())

	r.api.with(func() {
		gone := r.api.groups["fast"]
		delete(r.api.groups, "fast")
		r.api.changed("DELETED", gone)
	})
	r.eventually(func() bool { return r.declaredStates() == "" }, "it is still reported: %s", r.declaredStates())
	require.Equal(t, 3, m.calls())
}

// Groups that an earlier daemon has reported as made are passed on as reported, because the node's own records may be
// lost.
func TestReportedGroupsAreMarked(t *testing.T) {
	t.Parallel()
	r, m := newGroupRig(t)
	r.api.putGroup(volumeGroup("fast"))
	stop := r.start()
	r.eventually(func() bool { return r.declaredStates() == "fast Made: made" }, "%s", r.declaredStates())
	stop()
	m.with(func() {
		require.False(t, m.asked[0][0].Reported)
		m.asked = nil
	})
	r.start()
	r.eventually(func() bool { return m.calls() > 0 }, "not looked at")
	m.with(func() { require.True(t, m.asked[0][0].Reported) })
}

// A group whose disks have died stays reported as created, with its last disks: the node's own records may be lost
// before it is looked at again, and then no other disk may be taken for it.
func TestLostGroupStaysMarked(t *testing.T) {
	for name, members := range map[string][]volumegroup.Disk{
		"its disks are known": {{ID: "serial-1", Path: "/dev/sdb"}}, "they are not known": nil,
	} {
		for how, err := range map[string]error{"refused": nil, "a failed pass": errors.New("the ledger is unreadable")} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				r, m := newGroupRig(t)
				m.answer = func(d volumegroup.Declaration) volumegroup.Outcome {
					return volumegroup.Outcome{Name: d.Name, Group: d.Group, State: volumegroup.Made, Message: "made", Members: members}
				}
				r.api.putGroup(volumeGroup("fast"))
				stop := r.start()
				r.eventually(func() bool { return r.declaredStates() == "fast Made: made" }, "%s", r.declaredStates())
				m.with(func() {
					m.err = err
					m.answer = func(d volumegroup.Declaration) volumegroup.Outcome {
						return volumegroup.Outcome{Name: d.Name, Group: d.Group, State: volumegroup.Refused, Message: "gone"}
					}
				})
				for range 2 { // the second pass sees the report of the first
					before := m.calls()
					r.clock.pass(time.Minute)
					r.eventually(func() bool { return m.calls() > before }, "not looked at")
					r.rounds(2)
				}
				require.Contains(t, r.declaredStates(), "fast Refused: ")
				disks := r.status().DeclaredGroups[0].Disks
				require.Len(t, disks, 1)
				require.Equal(t, "was in the group when that was last seen", disks[0].Reason)
				if members != nil {
					require.Equal(t, "serial-1", disks[0].ID)
				}
				stop()
				m.with(func() { m.asked = nil })
				r.start()
				r.eventually(func() bool { return m.calls() > 0 }, "not looked at")
				m.with(func() { require.True(t, m.asked[0][0].Reported) })

				m.with(func() {
					m.err = nil
					m.answer = func(d volumegroup.Declaration) volumegroup.Outcome {
						return volumegroup.Outcome{Name: d.Name, Group: d.Group, State: volumegroup.Made, Message: "again", Members: []volumegroup.Disk{{ID: "serial-2"}}}
					}
				})
				r.clock.pass(time.Minute)
				r.eventually(func() bool { return r.declaredStates() == "fast Made: again" }, "%s", r.declaredStates())
				require.Equal(t, []flexlvmv1.DeclaredDisk{{ID: "serial-2"}}, r.status().DeclaredGroups[0].Disks)
			})
		}
	}
}

// A group that the watch shows is not made unless the API server confirms it.
func TestDeclaredGroupsAreConfirmed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before func(*rig)
		says   string
	}{
		"withdrawn meanwhile":            {func(r *rig) { r.api.with(func() { delete(r.api.groups, "fast") }) }, "have changed meanwhile"},
		"another has come":               {func(r *rig) { r.api.with(func() { r.api.groups["new"] = volumeGroup("new") }) }, "have changed meanwhile"},
		"the node is selected no more":   {func(r *rig) { r.api.with(func() { r.api.nodeLabels = nil }) }, "no longer selects this node"},
		"its label is another's":         {func(r *rig) { r.api.with(func() { r.api.nodeLabels = map[string]string{"disks": "none"} }) }, "no longer selects this node"},
		"the API server does not answer": {func(r *rig) { r.api.fail(0, "list volumegroups") }, "list VolumeGroups"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, m := newGroupRig(t)
			m.before = func() { c.before(r) }
			r.start()
			r.eventually(r.readyIs("Ready"), "not ready")
			r.api.putGroup(volumeGroup("fast"))
			r.eventually(func() bool { return m.calls() > 0 }, "not looked at")
			m.with(func() { require.ErrorContains(t, m.confirm[0], c.says) })
		})
	}
}

// Failures of declared groups are reported, and volumes are looked after nevertheless.
func TestDeclaredGroupsThatCannotBeLookedAt(t *testing.T) {
	t.Parallel()
	r, m := newGroupRig(t)
	m.err = errors.New("the ledger is unreadable")
	r.api.putGroup(volumeGroup("fast"))
	r.start()
	r.eventually(func() bool { return r.declaredStates() == "fast Refused: the ledger is unreadable" }, "%s", r.declaredStates())
	r.eventually(r.readyIs("Ready"), "not ready")
	r.eventually(func() bool { return len(r.api.told("VolumeGroupsFailed")) == 1 }, "not told")
}

// Loop devices are attached without an API server. If one cannot be attached, that is announced once.
func TestLoopDeviceThatCannotBeAttached(t *testing.T) {
	t.Parallel()
	r, m := newGroupRig(t)
	m.loops = errors.New("file /srv/a.img is gone")
	r.api.putGroup(volumeGroup("fast", func(g *flexlvmv1.VolumeGroup) {
		g.Spec.Disks, g.Spec.Loop = nil, &flexlvmv1.LoopSpec{File: "/srv/a.img", Size: "1Gi", ForTests: true}
	}))
	r.start()
	r.eventually(r.readyIs("Ready"), "not ready")
	r.eventually(func() bool { return len(r.api.told("LoopDeviceFailed")) == 1 }, "not told")
	require.Contains(t, r.api.told("LoopDeviceFailed")[0], "/srv/a.img is gone; it is retried")
	r.eventually(func() bool { return m.calls() > 0 }, "not looked at")
	m.with(func() {
		require.Equal(t, &volumegroup.Loop{File: "/srv/a.img", Size: volume.GiB, ForTests: true}, m.asked[0][0].Loop)
	})
}

// While the VolumeGroups cannot be read, their last report stays.
func TestDeclaredGroupsThatAreNotShown(t *testing.T) {
	t.Parallel()
	r, m := newGroupRig(t)
	r.api.putGroup(volumeGroup("fast"))
	stop := r.start()
	r.eventually(func() bool { return r.declaredStates() == "fast Made: made" }, "%s", r.declaredStates())
	stop()
	before := m.calls()
	r.api.fail(403, "list volumegroups", "watch volumegroups")
	r.start()
	r.rounds(3)
	require.Equal(t, "fast Made: made", r.declaredStates())
	require.Equal(t, before, m.calls())
}

// A dry run makes no groups.
func TestDeclaredGroupsInADryRun(t *testing.T) {
	t.Parallel()
	r, m := newGroupRig(t)
	r.config.DryRun = true
	r.api.putGroup(volumeGroup("fast"))
	r.start()
	r.eventually(r.readyIs("DryRun"), "not ready")
	r.rounds(3)
	require.Zero(t, m.calls())
}
