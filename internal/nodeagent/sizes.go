package nodeagent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/nfsquota"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A SizeKeeper holds the directories of an NFS export of this node to their sizes:
// *nfsquota.Keeper, in production.
type SizeKeeper interface {
	// Dir is the exported directory.
	Dir() string
	// Look holds them, and reports what it has found. The error says why none can be held.
	Look(ctx context.Context) (nfsquota.Report, error)
	// Await returns when directories have come or gone, after most, or when ctx ends.
	Await(ctx context.Context, most time.Duration)
}

// holdSizes looks after the exports until ctx ends, beside the rounds: what it does concerns no
// volume of LVM, and needs no API server.
func (d *Daemon) holdSizes(ctx context.Context) {
	if d.cfg.DryRun {
		return
	}
	var all sync.WaitGroup
	defer all.Wait()
	for _, k := range d.cfg.Sizes {
		all.Go(func() {
			for ctx.Err() == nil {
				r, err := k.Look(ctx)
				if ctx.Err() != nil {
					return
				}
				d.announceSizes(ctx, k.Dir(), r, err)
				k.Await(ctx, wait.Jitter(d.cfg.Interval, spread))
			}
		})
	}
}

// announceSizes says of which directories the size is not enforced that should be.
func (d *Daemon) announceSizes(ctx context.Context, export string, r nfsquota.Report, err error) {
	d.out.Metrics.sizesHeld(export, r.Asked, r.Held)
	why := ""
	switch {
	case err != nil:
		why = err.Error()
	case len(r.Problems) == 1:
		why = r.Problems[0]
	case len(r.Problems) > 1:
		why = fmt.Sprintf("%s, and so on", r.Problems[0])
	}
	topic, log := "sizes "+export, klog.FromContext(ctx)
	switch {
	case why == "" && d.dedupe.over(topic):
		log.Info("The sizes of all volumes in an NFS export are enforced again", "export", export, "volumes", r.Held)
	case why != "" && d.dedupe.fresh(topic, why, d.cfg.Now()):
		message := fmt.Sprintf("NFS export %s: the size of %s is not enforced: %s", export, volume.Counted(r.Asked-r.Held, "volume", "volumes"), why)
		log.Info("The sizes of volumes in an NFS export are not enforced", "export", export, "volumes", r.Asked-r.Held, "why", why, "all", r.Problems)
		d.events.onNode(warning, "NFSSizeNotEnforced", message)
	}
}
