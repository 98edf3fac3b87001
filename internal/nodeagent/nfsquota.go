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

// A SizeEnforcer enforces the sizes of directories in this node's NFS exports: *nfsquota.Keeper, in production.
type SizeEnforcer interface {
	// Reconcile makes one pass, and reports its findings for each export.
	Reconcile(ctx context.Context) []nfsquota.Report
	// Await returns when directories have been created or deleted, after maxWait, or when ctx ends.
	Await(ctx context.Context, maxWait time.Duration)
}

// enforceSizes enforces the sizes until ctx ends, concurrently with the rounds: it concerns no LVM volume, and
// needs no API server.
func (d *Daemon) enforceSizes(ctx context.Context) {
	if d.cfg.DryRun || d.cfg.Sizes == nil {
		return
	}
	for ctx.Err() == nil {
		reports := d.cfg.Sizes.Reconcile(ctx)
		if ctx.Err() != nil {
			return
		}
		for _, r := range reports {
			d.announceSizes(ctx, r)
		}
		d.cfg.Sizes.Await(ctx, wait.Jitter(d.cfg.Interval, spread))
	}
}

// announceSizes announces sizes in an export that are not enforced, or enforced again.
func (d *Daemon) announceSizes(ctx context.Context, r nfsquota.Report) {
	d.out.Metrics.setSizes(r.Export, r.Asked, r.Held)
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
	case why == "" && r.Held > 0 && d.dedupe.end(topic): // an export without volumes enforces no sizes
		log.Info("The sizes of all volumes in an NFS export are enforced again", "export", r.Export, "volumes", r.Held)
	case why != "" && d.dedupe.note(topic, why, d.cfg.Now()):
		which := "sizes are"
		if n := r.Asked - r.Held; n > 0 { // otherwise the number is unknown
			which = fmt.Sprintf("the size of %s is", volume.Pluralize(n, "volume", "volumes"))
		}
		message := fmt.Sprintf("NFS export %s: %s not enforced: %s", r.Export, which, why)
		log.Info("The sizes of volumes in an NFS export are not enforced", "export", r.Export, "volumes", r.Asked-r.Held, "why", why, "all", r.Problems)
		d.events.onNode(warning, "NFSSizeNotEnforced", message)
	}
}
