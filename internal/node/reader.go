package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/flexlvm/flexlvm/internal/luks"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// ErrNoReplica: this node has no replica of the dataset, or no longer has one.
var ErrNoReplica = errors.New("no replica")

func noReplicaErr(spec volume.Spec, why string) error {
	return fmt.Errorf("%w: this node has none of dataset %s/%s: %s; it was evicted, has moved, or is not created yet. Delete the pod, so that the scheduler sends it to a node that has one (label flexlvm.io/%s), or wait until there is one here",
		ErrNoReplica, spec.Group, spec.Name, why, spec.Name)
}

// mountReader mounts a replica, or the current one of its versions, on t for readers. It changes only the
// volume's record: it does not create, format, grow or limit the volume, which may be mounted for its loader
// at the same time.
func (e *Engine) mountReader(ctx context.Context, spec volume.Spec, t *mount.Target) error {
	f, err := e.findReplica(ctx, spec)
	if err != nil {
		return err
	}
	whole, err := mount.AttachForReaders(f.content.info().mountType, f.content.path)
	if err != nil {
		return err
	}
	defer func() { _ = whole.Close() }()
	fs := whole
	if spec.Versions {
		version, err := currentVersion(whole, t)
		if err != nil {
			return err
		}
		if version != nil {
			defer func() { _ = version.Close() }()
			fs = version
		}
	}
	if why := fs.Unmapped(); why != nil {
		e.log.WithError(why).WithField("volume", string(spec.Group)+"/"+string(spec.Name)).
			Warn("only the container runtime keeps consumers of this dataset from writing to it; have their pods say readOnly: true")
	}
	e.after("attach")
	if err := e.boundRetries(f); err != nil {
		return err
	}
	return e.moveToTarget(ctx, f, fs, t)
}

// findReplica returns the volume of a reader's spec if this node has handed it out before, or LVM shows it as
// ready: no other volume can hold a dataset.
func (e *Engine) findReplica(ctx context.Context, spec volume.Spec) (openedVolume, error) {
	f, err := e.openFromRecord(ctx, spec, luks.Key{})
	if !errors.Is(err, errAskLVM) {
		return f, err
	}
	lv, tags, err := e.lookUpAdmitted(ctx, spec)
	if errors.Is(err, errRenamed) {
		return openedVolume{}, err // the replica is there
	}
	for _, none := range []error{lvm.ErrNoVolume, lvm.ErrNoGroup} {
		if errors.Is(err, none) {
			return openedVolume{}, noReplicaErr(spec, none.Error())
		}
	}
	if err != nil {
		return openedVolume{}, err
	}
	return e.replicaIn(ctx, spec, lv, tags)
}

// replicaIn returns the replica on a logical volume with these tags.
func (e *Engine) replicaIn(ctx context.Context, spec volume.Spec, lv lvm.LogicalVolume, tags volume.Tags) (openedVolume, error) {
	if tags.State == volume.Creating {
		recorded, err := e.isRecorded(lv)
		if err != nil {
			return openedVolume{}, err
		}
		if !recorded {
			return openedVolume{}, noReplicaErr(spec, "it is being made")
		}
	}
	d, err := e.activeDevice(ctx, lv)
	if err != nil {
		return openedVolume{}, err
	}
	f := openedVolume{device: d, content: e.contentOf(d, tags), tags: tags}
	if _, err := checkFilesystem(lv, tags, f.content, true); err != nil {
		return openedVolume{}, err
	}
	return f, nil
}
