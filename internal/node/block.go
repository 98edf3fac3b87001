package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/flexlvm/flexlvm/internal/dm"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A raw block volume is published as a device-mapper device that maps the beginning of its logical volume, or
// of the LUKS container on that. The mapping has exactly the requested size, to the byte, and grows only
// after the added part is zeroed. It keeps the logical volume open for as long as the volume is published,
// whether or not a process has the device open.

// blockKind is the content of a raw block volume: no file system, but the device itself. Nothing on the
// device identifies the volume; its tags do. In state creating, the device is not known to be zeroed, and no
// pod has ever had it (recordMountable).
type blockKind struct {
	engine *Engine
	device lvm.Device
	tags   volume.Tags
}

func (blockKind) info() fsInfo { return fsInfo{title: "raw block", checkCommand: "lvs -o +lv_tags"} }

func (k blockKind) format(ctx context.Context, path string, tags volume.Tags, _ int64) error {
	return k.engine.zero(ctx, k.device, path, tags)
}

func (k blockKind) uuid(string) (string, error) {
	if k.tags.State == volume.Creating {
		return "", noFilesystem{errors.New("it is not known to be zeroed")}
	}
	return k.tags.FS, nil
}

func (blockKind) setUUID(context.Context, string, string) error { return nil }

func (blockKind) mounted(string) mountedFilesystem { return nil }

func (blockKind) markUsed(string, volume.Tags) (bool, error) { return false, nil }

func (blockKind) usedAt(string, use) (volume.Bytes, error) {
	return 0, noFilesystem{errors.New("a volume that is not known to be zeroed was never in use")}
}

const (
	// zeroProgressInterval is the time between two records of the progress of zeroing. It is less than
	// kubelet's timeout for a call, whatever the speed of the disk and the rate limit.
	zeroProgressInterval = 10 * time.Second
	// progressGrace is how long a call may exceed its deadline to record its progress.
	progressGrace = 10 * time.Second
)

// errYielded: an engine that yields has zeroed part of a volume. Other calls may lock the volume now, and the
// next call continues.
var errYielded = errors.New("not all of it is zeroed yet")

// zero overwrites with zeros the part of a raw block volume, whose content is at path, that no pod has seen
// yet. It records its progress in the volume's tags, so that the next call continues where this one was
// killed or ran out of time. A thin volume is not zeroed: it reads as zeros, or as noise if it is encrypted.
// In both cases LVM's metadata is durable when zero returns, before this node's record says that the volume
// exists or has grown.
//
// An encrypted thick volume is zeroed as well: a copy has the volume key of its source, so its pod could read
// data of the source that is left on the disk.
func (e *Engine) zero(ctx context.Context, d lvm.Device, path string, tags volume.Tags) (err error) {
	thin, err := lvm.Thin(d.Number)
	if err != nil {
		return err
	}
	if thin {
		return e.lvm.Flush(ctx, d.Group, d.Name)
	}
	size, err := e.committedSize(ctx, d, path)
	if err != nil {
		return err
	}
	from := tags.Zeroed
	if tags.State != volume.Creating {
		from = max(from, tags.Size.RoundUp(volume.Block)) // a copy may have no tag of its progress
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("zero volume %s/%s: %w", d.Group, d.Name, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for from < size {
		at, err := e.zeroStep(ctx, f, from, size)
		if at > from {
			failed := e.noteZeroed(ctx, f, d, tags.Zeroed, at)
			if failed == nil {
				from, tags.Zeroed = at, at
			}
			err = errors.Join(err, failed)
		}
		if err != nil {
			return fmt.Errorf("zero volume %s/%s, %d of %d bytes are done, and the next call goes on: %w", d.Group, d.Name, int64(from), int64(size), err)
		}
		if e.yields && from < size {
			return errYielded
		}
	}
	return nil
}

// zeroStep zeroes for zeroProgressInterval, or for holdTime if the engine yields, and returns the end of the
// zeroed part, also with an error.
func (e *Engine) zeroStep(ctx context.Context, f *os.File, at, size volume.Bytes) (volume.Bytes, error) {
	long := zeroProgressInterval
	if e.yields {
		long = holdTime
	}
	for begun := time.Now(); at < size && time.Since(begun) < long; {
		var err error
		if at, err = wipePart(ctx, openDevice{f}, volume.WipeZero, at, min(stepAt(e.zeroRate), size-at), e.zeroRate); err != nil {
			return at, err
		}
	}
	return at, nil
}

// noteZeroed records in the tags how much is zeroed, after making the zeros durable. It does so even if the
// call's deadline has passed; otherwise every call would zero the same part of a slow disk again.
func (e *Engine) noteZeroed(ctx context.Context, f *os.File, d lvm.Device, old, now volume.Bytes) error {
	if err := f.Sync(); err != nil {
		return err
	}
	e.after("zero")
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), progressGrace)
		defer cancel()
	}
	var del []string
	if old > 0 {
		del = []string{volume.ZeroedTag(old)}
	}
	lv := lvm.LogicalVolume{Group: d.Group, Name: d.Name, UUID: d.VolumeUUID}
	if err := e.lvm.Retag(ctx, lv, del, []string{volume.ZeroedTag(now)}); err != nil {
		return err
	}
	e.after("tag zeroed")
	return nil
}

// mountBlockDevice mounts the device node of a raw block volume's mapping onto t.
func (e *Engine) mountBlockDevice(ctx context.Context, f openedVolume, t *mount.Target) error {
	m, err := e.ensureMapping(ctx, f)
	if err != nil {
		return err
	}
	device, err := mount.AttachNode(m.Path, m.Number)
	if err != nil {
		return err
	}
	defer func() { _ = device.Close() }()
	return e.moveToTarget(ctx, f, device, t)
}

// ensureMapping creates the mapping of a raw block volume, or grows it to the volume's current size.
func (e *Engine) ensureMapping(ctx context.Context, f openedVolume) (dm.Mapping, error) {
	m, err := publishedMapping(f.device, f.tags)
	if errors.Is(err, dm.ErrNoMapping) {
		// Alone: LVM's commands ignore the tenants' mappings that exist when they start, so none may appear
		// while one runs.
		if err := e.lvm.Alone(ctx, func() error {
			return dm.Make(ctx, e.host.Unkillable, dm.BlockName(f.device.VolumeUUID), f.content.number, f.tags.Size)
		}); err != nil {
			return m, fmt.Errorf("make the device of volume %s/%s: %w", f.device.Group, f.device.Name, err)
		}
		e.after("make mapping")
		if m, err = publishedMapping(f.device, f.tags); err != nil {
			return m, fmt.Errorf("dmsetup has made %s and it cannot be used: %w", dm.BlockName(f.device.VolumeUUID), err)
		}
	}
	if err != nil {
		return m, err
	}
	// Grow it before checkNode: a killed dmsetup may have left a mapping without a table, and that has no
	// device node yet.
	if err := e.growMapping(ctx, f, m); err != nil {
		return m, err
	}
	return m, checkNode(m)
}

// growMapping grows a mapping to the size of its volume. It never shrinks the mapping.
func (e *Engine) growMapping(ctx context.Context, f openedVolume, m dm.Mapping) error {
	if err := e.awaitMapping(ctx, f.device); err != nil {
		return err
	}
	size, err := dm.Size(dm.Sys, m.Number)
	if err != nil || size >= f.tags.Size {
		return err
	}
	if err := dm.Resize(ctx, e.host.Unkillable, m.Name, f.content.number, f.tags.Size); err != nil {
		return fmt.Errorf("grow the device of volume %s/%s: %w", f.device.Group, f.device.Name, err)
	}
	e.after("grow mapping")
	return nil
}

// growPublishedMapping calls growMapping if the volume is published.
func (e *Engine) growPublishedMapping(ctx context.Context, f openedVolume) error {
	m, err := publishedMapping(f.device, f.tags)
	if errors.Is(err, dm.ErrNoMapping) {
		return nil // its next mount maps the whole volume
	}
	if err != nil {
		return err
	}
	return e.growMapping(ctx, f, m)
}

// recordedSmaller reports whether the record of a raw block volume has the size from before a growth. The
// next mount would use that size.
func (e *Engine) recordedSmaller(f openedVolume) bool {
	rec, err := e.records.read(f.device.Group, f.device.Name)
	return f.tags.FSType == volume.Raw && err == nil && rec.VolumeUUID == f.device.VolumeUUID && rec.Size < f.tags.Size
}

// checkBlockMount refuses mount options that a raw block volume does not support.
func checkBlockMount(spec volume.Spec, r MountRequest) error {
	switch {
	case spec.FSType != volume.Raw:
		return nil
	case r.ReadOnly:
		return &volume.FieldError{Field: "readOnly", Value: "true", Reason: "is not supported with volumeMode Block; leave it out"}
	case len(r.Options) > 0:
		return &volume.FieldError{Field: "mountOptions", Value: string(r.Options[0]), Reason: "does not belong to volumeMode Block, which has no file system; remove it"}
	}
	return nil
}
