package nodeagent

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/nfsquota"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A SizeKeeper holds the directories of the NFS exports of this node to their sizes:
// *nfsquota.Keeper, in production.
type SizeKeeper interface {
	// Look holds them, and reports what it has found in each export.
	Look(ctx context.Context) []nfsquota.Report
	// Await returns when directories have come or gone, after most, or when ctx ends.
	Await(ctx context.Context, most time.Duration)
}

// holdSizes looks after the exports until ctx ends, beside the rounds: what it does concerns no
// volume of LVM, and needs no API server.
func (d *Daemon) holdSizes(ctx context.Context) {
	if d.cfg.DryRun || d.cfg.Sizes == nil {
		return
	}
	for ctx.Err() == nil {
		reports := d.cfg.Sizes.Look(ctx)
		if ctx.Err() != nil {
			return
		}
		for _, r := range reports {
			d.announceSizes(ctx, r)
		}
		d.cfg.Sizes.Await(ctx, wait.Jitter(d.cfg.Interval, spread))
	}
}

// announceSizes says of which directories the size is not enforced that should be.
func (d *Daemon) announceSizes(ctx context.Context, r nfsquota.Report) {
	d.out.Metrics.sizesHeld(r.Export, r.Asked, r.Held)
	why := ""
	switch {
	case r.Err != nil:
		why = r.Err.Error()
	case len(r.Problems) == 1:
		why = r.Problems[0]
	case len(r.Problems) > 1:
		why = fmt.Sprintf("%s, and so on", r.Problems[0])
	}
	topic, log := "sizes "+r.Export, klog.FromContext(ctx)
	switch {
	case why == "" && r.Held > 0 && d.dedupe.over(topic): // where there is none, none is enforced again
		log.Info("The sizes of all volumes in an NFS export are enforced again", "export", r.Export, "volumes", r.Held)
	case why != "" && d.dedupe.fresh(topic, why, d.cfg.Now()):
		which := "sizes are"
		if n := r.Asked - r.Held; n > 0 { // otherwise it is not known of how many
			which = fmt.Sprintf("the size of %s is", volume.Counted(n, "volume", "volumes"))
		}
		message := fmt.Sprintf("NFS export %s: %s not enforced: %s", r.Export, which, why)
		log.Info("The sizes of volumes in an NFS export are not enforced", "export", r.Export, "volumes", r.Asked-r.Held, "why", why, "all", r.Problems)
		d.events.onNode(warning, "NFSSizeNotEnforced", message)
	}
}
