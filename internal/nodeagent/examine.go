package nodeagent

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	// examineEvery is how often the node is examined, and examineSoon while a check fails. A change of the
	// volume groups triggers an examination immediately.
	examineEvery, examineSoon = 10 * time.Minute, 2 * time.Minute
	// maxChecks and maxCheckText bound the results in the NodeStorage.
	maxChecks    = 20
	maxCheckText = 300
	// passed and failed are the best and the worst level of a check.
	passed, failed = "OK", "FAIL"
)

// An examination is the result of one run of the checks.
type examination struct {
	at     time.Time
	groups []volume.Group
	count  int
	found  []flexlvmv1.Check
}

// examine examines the node periodically until ctx ends, concurrently with the rounds, because a program of the
// host may hang.
func (d *Daemon) examine(ctx context.Context) {
	if d.cfg.Examine == nil {
		return
	}
	for ctx.Err() == nil {
		next := examineEvery
		if d.examineOnce(ctx) {
			next = examineSoon
		}
		timer := time.NewTimer(wait.Jitter(next, spread))
		select {
		case <-ctx.Done():
		case <-d.regrouped:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// noteGroups triggers an examination if the node's volume groups and those that PersistentVolumes name are not
// exactly the groups that were examined last.
func (d *Daemon) noteGroups(f observation) {
	var named []volume.Group
	for i := range f.view.PersistentVolumes {
		if g := f.view.PersistentVolumes[i].Group; !slices.Contains(named, g) {
			named = append(named, g)
		}
	}
	d.namedGroups.Store(&named)
	if e := d.examined.Load(); e == nil || slices.Equal(e.groups, groupsOf(f.inventory, named)) {
		return
	}
	notify(d.regrouped)
}

// groupsOf returns the groups to examine: those that hold volumes or pools of flexlvm, empty ones, and the named ones.
// Others, such as the operating system's, may be full. A group that a PersistentVolume names is examined even if LVM
// does not see it, because the examination finds out why.
func groupsOf(in inventory.Inventory, named []volume.Group) []volume.Group {
	groups := slices.Clone(named)
	for i := range in.Pools {
		if p := &in.Pools[i]; p.Thin != nil || p.Directories != nil || p.LVs == 0 {
			groups = append(groups, p.Name.Group())
		}
	}
	for i := range in.Volumes {
		groups = append(groups, in.Volumes[i].Group)
	}
	slices.Sort(groups)
	return slices.Compact(groups)
}

// examineOnce runs the checks once, and reports whether one has failed.
func (d *Daemon) examineOnce(ctx context.Context) bool {
	in, err := d.engine.Inventory(ctx)
	if err != nil {
		klog.FromContext(ctx).V(1).Info("The node's volume groups cannot be listed, so none is examined", "err", err)
	}
	var named []volume.Group
	if n := d.namedGroups.Load(); n != nil {
		named = *n
	}
	groups := groupsOf(in, named)
	all := d.cfg.Examine(ctx, groups)
	if ctx.Err() != nil {
		return false
	}
	next := examination{at: d.cfg.Now(), groups: groups, count: len(all)}
	for _, c := range all {
		if c.Level != passed && len(next.found) < maxChecks {
			c.Check, c.Detail, c.Do = clip(c.Check, maxCheckText), clip(c.Detail, maxCheckText), clip(c.Do, maxCheckText)
			next.found = append(next.found, c)
		}
	}
	d.examined.Store(&next)
	d.kick()
	return len(next.found) > 0 && next.found[0].Level == failed
}
