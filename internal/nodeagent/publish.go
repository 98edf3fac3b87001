package nodeagent

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/version"
)

// publishEvery is how often the report is written without a change, and up to spread
// later, so that its readers can tell a quiet node from a dead one.
const publishEvery = 5 * time.Minute

// remember takes over from the NodeStorage what an earlier process has done. Only
// where orphans may go does anything hang on it: how many have gone already.
func (d *Daemon) remember(ctx context.Context) error {
	if d.history.hasBegun() {
		return nil
	}
	own, err := d.api.NodeStorage(ctx, d.cfg.Node)
	switch {
	case apierrors.IsNotFound(err):
		d.history.begin(d.cfg.Now(), nil)
	case err != nil && d.cfg.Policy.EvictOrphans:
		return err
	case err == nil:
		d.history.begin(d.cfg.Now(), own.Status.Evictions)
	}
	return nil
}

// othersReport reports whether the NodeStorage is that of another daemon, beside which this one only
// says what it would do. What it would report goes by other flags, and room is promised by the report.
func (d *Daemon) othersReport() (bool, error) {
	if !d.cfg.DryRun || d.cfg.Taken == nil {
		return false, nil
	}
	taken, err := d.cfg.Taken()
	if err != nil {
		return false, fmt.Errorf("find out whether another daemon works on this node, and reports: %w", err)
	}
	return taken, nil
}

// publish writes what a round has found, or why it failed, where that is news.
func (d *Daemon) publish(ctx context.Context, f observation, failed error) error {
	if others, err := d.othersReport(); others || err != nil {
		return err
	}
	own, err := d.own(ctx)
	if err != nil {
		return err
	}
	evictions, changes := d.history.evictions()
	r := report{
		now: d.cfg.Now(), version: version.String, err: failed, missing: d.cfg.Missing(),
		dryRun: d.cfg.DryRun, evictions: evictions, healing: d.healing(f), policy: d.cfg.Policy, origin: d.releasedClaims.origin, examined: d.examined.Load(), notMade: d.whyNotMade,
	}
	if !d.history.hasBegun() || d.cfg.DryRun { // which evicts nothing, but another daemon may have
		r.evictions = own.Status.Evictions
	}
	// Another daemon may write in the same moment, while it takes over from this one.
	for range 3 {
		r.discovered, r.discoveredFrom = d.discoverer.report(own.Status)
		r.declared, r.answers = d.declared.report(own.Status.DeclaredGroups), d.answersTo(own)
		next := own.DeepCopy()
		next.Status = statusOf(own.Status, f, r)
		age := r.now.Sub(own.Status.ObservedTime.Time) // negative where the clock was ahead
		if sameStatus(own.Status, next.Status) && age >= 0 && age < d.publishEvery {
			d.onRecord(changes)
			return nil
		}
		_, err = d.api.UpdateNodeStorageStatus(ctx, next)
		if err == nil {
			d.onRecord(changes)
		}
		if !apierrors.IsConflict(err) {
			return err
		}
		if own, err = d.api.NodeStorage(ctx, d.cfg.Node); err != nil {
			return err
		}
	}
	return err
}

// onRecord notes which evictions the NodeStorage has. An orphan may wait for that.
func (d *Daemon) onRecord(changes int) {
	if d.history.announce(changes) && d.cfg.Policy.EvictOrphans {
		d.kick()
	}
}

// own gives the node's NodeStorage, and makes it where there is none.
func (d *Daemon) own(ctx context.Context) (*flexlvmv1.NodeStorage, error) {
	if known, synced := d.watches.nodeStorage(d.cfg.Node); synced && known != nil {
		return known, nil
	}
	own, err := d.api.NodeStorage(ctx, d.cfg.Node)
	if !apierrors.IsNotFound(err) {
		return own, err
	}
	owner, err := d.api.Node(ctx, d.cfg.Node)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("report on node %s: %w; --node-name must be the name of the Node that this daemon runs on", d.cfg.Node, err)
	}
	if err != nil {
		return nil, err
	}
	own, err = d.api.CreateNodeStorage(ctx, &flexlvmv1.NodeStorage{ObjectMeta: metav1.ObjectMeta{
		Name: d.cfg.Node,
		OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: owner.Name, UID: owner.UID},
		},
	}})
	if apierrors.IsAlreadyExists(err) {
		return d.api.NodeStorage(ctx, d.cfg.Node)
	}
	return own, err
}

// healing are the volumes whose problem has not outlasted two tries to put it
// right: nobody need look at them yet. That a removal has failed is no such problem.
func (d *Daemon) healing(f observation) map[string]bool {
	out := map[string]bool{}
	for _, v := range f.inventory.Volumes {
		if ailing(v, f.at) && d.heals.times(v.UUID) < 3 && !f.inventory.Exported(&v) {
			out[v.UUID] = true
		}
	}
	return out
}
