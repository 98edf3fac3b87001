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
	// examineEvery is how often the node is examined, and examineSoon while something is to be
	// mended. When there is another volume group, it is examined at once.
	examineEvery, examineSoon = 10 * time.Minute, 2 * time.Minute
	// mostChecks and mostCheckText bound what the NodeStorage has of it.
	mostChecks    = 20
	mostCheckText = 300
	// passed and failed are levels of a check that has found nothing, or the worst.
	passed, failed = "OK", "FAIL"
)

// An examination is what one has found.
type examination struct {
	at     time.Time
	groups []volume.Group
	count  int
	found  []flexlvmv1.Check
}

// examine examines the node now and then until ctx ends, beside the rounds: a program of the
// host's may hang.
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

// noteGroups has the node examined at once if it has other groups than those that were.
func (d *Daemon) noteGroups(in inventory.Inventory) {
	if e := d.examined.Load(); e == nil || slices.Equal(e.groups, groupsOf(in)) {
		return
	}
	select {
	case d.regrouped <- struct{}{}:
	default:
	}
}

func groupsOf(in inventory.Inventory) (groups []volume.Group) {
	for i := range in.Pools {
		if g := in.Pools[i].Name.Group(); !slices.Contains(groups, g) {
			groups = append(groups, g)
		}
	}
	slices.Sort(groups)
	return groups
}

// examineOnce reports whether something has failed.
func (d *Daemon) examineOnce(ctx context.Context) bool {
	in, err := d.engine.Inventory(ctx)
	if err != nil {
		klog.FromContext(ctx).V(1).Info("The node's groups cannot be listed, and none is examined", "err", err)
	}
	groups := groupsOf(in)
	all := d.cfg.Examine(ctx, groups)
	if ctx.Err() != nil {
		return false
	}
	next := examination{at: d.cfg.Now(), groups: groups, count: len(all)}
	for _, c := range all {
		if c.Level != passed && len(next.found) < mostChecks {
			c.Check, c.Detail, c.Do = clip(c.Check, mostCheckText), clip(c.Detail, mostCheckText), clip(c.Do, mostCheckText)
			next.found = append(next.found, c)
		}
	}
	d.examined.Store(&next)
	d.kick()
	return len(next.found) > 0 && next.found[0].Level == failed
}
