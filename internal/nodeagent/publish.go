package nodeagent

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/version"
)

// loadHistory takes over an earlier process's evictions from the NodeStorage. An error matters only if orphans may
// be evicted, because their number is limited.
func (d *Daemon) loadHistory(ctx context.Context) error {
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

// othersReport reports whether the NodeStorage belongs to another daemon, and this one is a dry run beside it.
// The report of a dry run would follow other flags, and the provisioner promises room by the report.
func (d *Daemon) othersReport() (bool, error) {
	if !d.cfg.DryRun || d.cfg.Locked == nil {
		return false, nil
	}
	locked, err := d.cfg.Locked()
	if err != nil {
		return false, fmt.Errorf("determine whether another daemon runs on this node and reports: %w", err)
	}
	return locked, nil
}

// publishInTime is publish with a timeout of its own. ctx is not the context of the round, which has ended if the
// round timed out.
func (d *Daemon) publishInTime(ctx context.Context, f observation, failed error) error {
	ctx, cancel := context.WithTimeout(ctx, publishTime)
	defer cancel()
	return d.publish(ctx, f, failed)
}

// publish writes the observation of a round, or its error, if that has changed or the report is due.
func (d *Daemon) publish(ctx context.Context, f observation, failed error) error {
	if others, err := d.othersReport(); others || err != nil {
		return err
	}
	own, err := d.ensureNodeStorage(ctx)
	if err != nil {
		return err
	}
	evictions, changes := d.history.evictions()
	r := report{
		now: d.cfg.Now(), version: version.String, err: failed, missing: d.cfg.Missing(),
		dryRun: d.cfg.DryRun, evictions: evictions, healing: d.healing(f), policy: d.cfg.Policy, origin: d.releasedClaims.origin, examined: d.examined.Load(), whyNotCreated: d.whyNotCreated,
	}
	if !d.history.hasBegun() || d.cfg.DryRun { // a dry run evicts nothing, but another daemon may have
		r.evictions = own.Status.Evictions
	}
	// Another daemon may write at the same time, while it takes over from this one.
	for range 3 {
		r.discovered, r.discoveredFrom = d.discoverer.report(own.Status)
		r.declared, r.answers = d.declared.report(own.Status.DeclaredGroups), d.answersTo(own)
		next := own.DeepCopy()
		next.Status = statusOf(own.Status, f, r)
		age := r.now.Sub(own.Status.ObservedTime.Time) // negative if the clock was ahead
		if sameStatus(own.Status, next.Status) && age >= 0 && age < d.publishEvery {
			d.noteReported(changes)
			return nil
		}
		_, err = d.api.UpdateNodeStorageStatus(ctx, next)
		if err == nil {
			d.noteReported(changes)
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

// noteReported records which evictions the NodeStorage has, because the next orphan may wait for that.
func (d *Daemon) noteReported(changes int) {
	if d.history.markReported(changes) && d.cfg.Policy.EvictOrphans {
		d.kick()
	}
}

// ensureNodeStorage returns this node's NodeStorage, and creates it if it does not exist.
func (d *Daemon) ensureNodeStorage(ctx context.Context) (*flexlvmv1.NodeStorage, error) {
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

// healing returns the volumes whose problem has outlasted fewer than three repairs, so nobody need look at them
// yet. A failed removal is not such a problem.
func (d *Daemon) healing(f observation) map[string]bool {
	out := map[string]bool{}
	for _, v := range f.inventory.Volumes {
		if mayHeal(v, f.at) && d.healRetries.times(v.ID()) < 3 && !f.inventory.Exported(&v) {
			out[v.ID()] = true
		}
	}
	return out
}
