package nodeagent

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// firstMountGrace is how long a first mount may take before its volume counts as left behind by a crash.
const firstMountGrace = time.Minute

// heal repairs volumes without a person's decision. The next inventory shows the result.
func (d *Daemon) heal(ctx context.Context, in inventory.Inventory) {
	if d.cfg.DryRun {
		return
	}
	log := klog.FromContext(ctx)
	deadline := time.Now().Add(healBudget)
	for _, v := range in.Volumes {
		now := d.cfg.Now()
		if v.Cluster != d.cluster || !mayHeal(v, now) || in.Exported(&v) {
			continue
		}
		if d.healRetries.waits(v.ID(), now) {
			continue
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			d.kick()
			return
		}
		// A success counts too: a creating volume whose mount never finished stays as it is, and is checked
		// with exponential backoff.
		err := d.engine.Heal(ctx, refOf(v))
		now = d.cfg.Now() // Heal may have taken longer than the delay
		b := d.healRetries.add(v.ID(), now, "")
		if err != nil && d.dedupe.note("heal "+v.ID(), err.Error(), now) {
			log.Error(err, "A volume could not be repaired; it is retried", "volume", eviction.KeyOf(&v).String(), "in", b.delay)
		}
	}
}

// mayHeal reports whether Heal may repair a volume. It cannot restore lost mirror copies, nor choose between the copies of
// a group.
func mayHeal(v inventory.Volume, now time.Time) bool {
	repairable := v.Problem != "" && !v.Degraded && !v.Copied
	switch v.State {
	case volume.Ready:
		return !v.Active || repairable
	case volume.Unreferenced:
		return v.Active && repairable
	case volume.Creating:
		return now.Sub(v.Created) > firstMountGrace
	}
	return false
}
