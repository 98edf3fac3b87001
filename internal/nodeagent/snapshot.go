package nodeagent

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// mostProblem bounds what a snapshot's PersistentVolume says of why it was not taken.
const mostProblem = 1000

// errNotWanted: the PersistentVolume of a snapshot is gone, or being deleted.
var errNotWanted = errors.New("nobody wants the snapshot any more")

// stillWanted asks the API server itself: a round's list may be older than the deletion.
func (d *Daemon) stillWanted(ctx context.Context, j copyJob) error {
	now, err := d.api.Volume(ctx, j.claim.PV)
	switch {
	case apierrors.IsNotFound(err), err == nil && (now.UID != j.claim.UID || now.DeletionTimestamp != nil):
		return errNotWanted
	}
	return err
}

// makeSnapshot takes a snapshot and says on its PersistentVolume that it is taken, or why not:
// by that the provisioner answers who has asked for it. Killed in between, it has taken it, and
// the next round finds and says that.
func (d *Daemon) makeSnapshot(ctx context.Context, j copyJob, spec volume.Spec) {
	made, err := d.engine.MakeSnapshotIf(ctx, spec, func(ctx context.Context) error { return d.stillWanted(ctx, j) })
	if ctx.Err() != nil {
		return // told to end; the next process takes it
	}
	defer d.kick()
	if errors.Is(err, errNotWanted) {
		return
	}
	wrote := d.api.Annotate(ctx, j.object, whatBecame(&j.claim, made, err))
	if apierrors.IsConflict(wrote) {
		d.copies.add(string(j.claim.UID), d.cfg.Now(), wrote.Error())
		return // somebody else has written to it
	}
	if err := errors.Join(err, wrote); err != nil {
		if d.notCopied(ctx, j, err) {
			d.events.onVolume(j.object, warning, "SnapshotNotTaken", err.Error())
		}
		return
	}
	d.copies.clear(string(j.claim.UID))
	d.dedupe.over("copy " + string(j.claim.UID))
	klog.FromContext(ctx).Info("Snapshot taken", "volume", eviction.KeyOfPersistentVolume(&j.claim).String(), "of", j.claim.CloneOf, "at", made.Created)
	d.events.onVolume(j.object, normal, "SnapshotTaken", "the snapshot of volume "+string(j.claim.CloneOf)+" is taken")
}

// whatBecame is what the PersistentVolume of a snapshot says of the try to take it.
func whatBecame(c *persistentvolume.Volume, made inventory.Volume, err error) map[string]*string {
	switch {
	case err != nil:
		return persistentvolume.NotTaken(clip(err.Error(), mostProblem))
	case c.CopyOnWrite():
		return persistentvolume.Stored(made.Created, made.Size, made.Full)
	}
	return persistentvolume.Taken(made.Created, made.Size)
}
