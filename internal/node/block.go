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

// A raw block volume is handed out as a device-mapper device that maps the beginning of its logical
// volume, or of the LUKS container on that. The mapping has exactly the size that was asked for, to the
// byte, and grows only once the added part was zeroed. It keeps the logical volume open for as long as
// the volume is published, whether or not a process has the device open.

// blockKind is the content of a raw block volume: no file system, but the device itself. Nothing on the
// device identifies it; the tags do. While they say creating, it is not known to be zeroed, and no pod
// has ever had it (handOut).
type blockKind struct {
	engine *Engine
	device lvm.Device
	tags   volume.Tags
}

func (blockKind) words() words { return words{title: "raw block", check: "lvs -o +lv_tags"} }

// format zeroes it.
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

func (blockKind) mark(string, volume.Tags) (bool, error) { return false, nil }

func (blockKind) usedAt(string, use) (volume.Bytes, error) {
	return 0, noFilesystem{errors.New("a volume that is not known to be zeroed was never in use")}
}

const (
	// zeroNote is how long is zeroed between two notes of how far it has come. It is less than
	// what kubelet gives a call, whatever the disk and the rate.
	zeroNote = 10 * time.Second
	// lastNote is how long a call whose time is over may still take to note that.
	lastNote = 10 * time.Second
)

// errYielded: an engine that yields has zeroed part of a volume. Others may take its lock now, and the
// next call continues.
var errYielded = errors.New("not all of it is zeroed yet")

// zero overwrites with zeros the part of a raw block volume, whose content is at path, that no pod has
// seen yet. It notes its progress in the volume's tags, so that the next call continues where a call
// was killed or ran out of time. A thin volume is not zeroed: it reads as zeros, or as noise if it is
// encrypted. In both cases LVM's metadata is durable afterwards, before this node's record says that
// the volume exists, or is so large.
//
// An encrypted volume is zeroed as well: a copy has the volume key of its source, so its pod could read
// what the source has left on the disk.
func (e *Engine) zero(ctx context.Context, d lvm.Device, path string, tags volume.Tags) (err error) {
	thin, err := lvm.Thin(d.Number)
	if err != nil {
		return err
	}
	if thin {
		return e.lvm.Flush(ctx, d.Group, d.Name)
	}
	size, err := deviceSize(path)
	if err != nil {
		return err
	}
	from := tags.Zeroed
	if tags.State != volume.Creating {
		from = max(from, tags.Size.RoundUp(volume.Block)) // a copy need have no note
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("zero volume %s/%s: %w", d.Group, d.Name, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for from < size {
		at, err := e.zeroSome(ctx, f, from, size)
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

// zeroSome zeroes for zeroNote, or for holdTime if the engine yields, and returns how far it came, also
// beside an error.
func (e *Engine) zeroSome(ctx context.Context, f *os.File, at, size volume.Bytes) (volume.Bytes, error) {
	long := zeroNote
	if e.yields {
		long = holdTime
	}
	for begun := time.Now(); at < size && time.Since(begun) < long; {
		var err error
		if at, err = wipePart(ctx, f, volume.WipeZero, at, min(stepAt(e.zeroRate), size-at), e.zeroRate); err != nil {
			return at, err
		}
	}
	return at, nil
}

// noteZeroed writes into the tags how much was zeroed, once that lasts over a power cut; also when
// the call's time is over, or it would be zeroed again and again where the disk is slow.
func (e *Engine) noteZeroed(ctx context.Context, f *os.File, d lvm.Device, old, now volume.Bytes) error {
	if err := f.Sync(); err != nil {
		return err
	}
	e.after("zero")
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), lastNote)
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

// putDevice mounts the node of a raw block volume's mapping onto t.
func (e *Engine) putDevice(ctx context.Context, f found, t *mount.Target) error {
	m, err := e.expose(ctx, f)
	if err != nil {
		return err
	}
	device, err := mount.AttachNode(m.Path, m.Number)
	if err != nil {
		return err
	}
	defer func() { _ = device.Close() }()
	return e.moveOn(ctx, f, device, t)
}

// expose makes the mapping of a raw block volume, or makes it as large as the volume is by now.
func (e *Engine) expose(ctx context.Context, f found) (dm.Mapping, error) {
	m, err := exposedOf(f.device, f.tags)
	if errors.Is(err, dm.ErrNoMapping) {
		// Alone: LVM's commands are kept from the mappings that were there when they began.
		if err := e.lvm.Alone(ctx, func() error {
			return dm.Make(ctx, e.host.Unkillable, dm.BlockName(f.device.VolumeUUID), f.content.number, f.tags.Size)
		}); err != nil {
			return m, fmt.Errorf("make the device of volume %s/%s: %w", f.device.Group, f.device.Name, err)
		}
		e.after("make mapping")
		if m, err = exposedOf(f.device, f.tags); err != nil {
			return m, fmt.Errorf("dmsetup has made %s and it cannot be used: %w", dm.BlockName(f.device.VolumeUUID), err)
		}
	}
	if err != nil {
		return m, err
	}
	// First: a dmsetup that was killed has made no node before the mapping has its table.
	if err := e.enlarge(ctx, f, m); err != nil {
		return m, err
	}
	return m, checkNode(m)
}

// enlarge makes a mapping as large as its volume. It never shrinks.
func (e *Engine) enlarge(ctx context.Context, f found, m dm.Mapping) error {
	if err := awaitMapping(ctx, f.device); err != nil {
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

// enlargeExposed is enlarge where the volume is handed out.
func (e *Engine) enlargeExposed(ctx context.Context, f found) error {
	m, err := exposedOf(f.device, f.tags)
	if errors.Is(err, dm.ErrNoMapping) {
		return nil // its next mount maps all of it
	}
	if err != nil {
		return err
	}
	return e.enlarge(ctx, f, m)
}

// recordedSmaller reports whether a raw block volume is on record with the size from before a
// growth, which its next mount would go by.
func (e *Engine) recordedSmaller(f found) bool {
	rec, err := e.records.read(f.device.Group, f.device.Name)
	return f.tags.FSType == volume.Raw && err == nil && rec.VolumeUUID == f.device.VolumeUUID && rec.Size < f.tags.Size
}

// checkBlockMount refuses what a mount of a raw block volume cannot be.
func checkBlockMount(spec volume.Spec, as Mounting) error {
	switch {
	case spec.FSType != volume.Raw:
		return nil
	case as.ReadOnly:
		return &volume.FieldError{Field: "readOnly", Value: "true", Reason: "is not supported with volumeMode Block; leave it out"}
	case len(as.Options) > 0:
		return &volume.FieldError{Field: "mountOptions", Value: string(as.Options[0]), Reason: "does not belong to volumeMode Block, which has no file system; remove it"}
	}
	return nil
}
