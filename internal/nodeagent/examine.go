package nodeagent

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	// examineEvery is how often the node is examined.
	examineEvery = 10 * time.Minute
	// mostChecks and mostCheckText bound what the NodeStorage has of it.
	mostChecks    = 20
	mostCheckText = 300
	// passed is the level of a check that has found nothing.
	passed = "OK"
)

// An examination is what one has found.
type examination struct {
	at    time.Time
	count int
	found []flexlvmv1.Check
}

// examine examines the node now and then until ctx ends, beside the rounds: a program of the
// host's may hang.
func (d *Daemon) examine(ctx context.Context) {
	if d.cfg.Examine == nil {
		return
	}
	for ctx.Err() == nil {
		d.examineOnce(ctx)
		timer := time.NewTimer(wait.Jitter(examineEvery, spread))
		select {
		case <-ctx.Done():
			timer.Stop()
		case <-timer.C:
		}
	}
}

func (d *Daemon) examineOnce(ctx context.Context) {
	in, err := d.engine.Inventory(ctx)
	if err != nil {
		klog.FromContext(ctx).V(1).Info("The node's groups cannot be listed, and the usual one is examined", "err", err)
	}
	var groups []volume.Group
	for i := range in.Pools {
		if g := in.Pools[i].Name.Group(); !slices.Contains(groups, g) {
			groups = append(groups, g)
		}
	}
	slices.Sort(groups)
	all := d.cfg.Examine(ctx, groups)
	if ctx.Err() != nil {
		return
	}
	next := examination{at: d.cfg.Now(), count: len(all)}
	for _, c := range all {
		if c.Level != passed && len(next.found) < mostChecks {
			c.Check, c.Detail, c.Do = clip(c.Check, mostCheckText), clip(c.Detail, mostCheckText), clip(c.Do, mostCheckText)
			next.found = append(next.found, c)
		}
	}
	d.examined.Store(&next)
	d.kick()
}
