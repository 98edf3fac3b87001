package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/pause"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	blkDiscard = 0x1277 // BLKDISCARD (linux/fs.h)
	blkZeroOut = 0x127f // BLKZEROOUT
	// wipeStep bounds one request, so that a deadline is noticed in time.
	wipeStep = 256 * volume.MiB
	// wipeProgressInterval is how much is wiped between two records of the progress.
	wipeProgressInterval = 4 * volume.GiB
)

// wipe overwrites or discards the content of a doomed volume, as its tags say. Repeating it is harmless; killed, it
// continues from the progress in the volume's record (a raid1 volume: from the beginning). The copies of a raid1 volume
// must be complete and in sync before and after: otherwise one of them, on a disk that failed or appeared meanwhile, may
// not have been wiped.
func (e *Engine) wipe(ctx context.Context, lv lvm.LogicalVolume, tags volume.Tags) error {
	if lv.Shape.Layout == volume.Thin && tags.Wipe == volume.WipeZero {
		// Overwriting would allocate pool space for blocks that were never written, and the pool zeroes new
		// blocks anyway. No class can request it.
		tags.Wipe = volume.WipeDiscard
	}
	if unfinished, err := e.lvm.Unfinished(ctx, lv); err != nil || unfinished {
		return err // it cannot be activated, and was never written to
	}
	d, err := e.deviceOf(ctx, lv, e.activateToWipe)
	if err != nil {
		return err
	}
	if err := e.awaitInSync(ctx, lv); err != nil {
		return err
	}
	size, err := deviceSize(d.Path)
	if err != nil {
		return err
	}
	if err := checkCommitted(lv, d.Path, size, lv.Size); err != nil {
		return err
	}
	// Exclusively: the kernel refuses a device that is mounted.
	f, err := os.OpenFile(d.Path, os.O_WRONLY|unix.O_EXCL, 0)
	if err != nil {
		return fmt.Errorf("wipe %s: %w", d.Path, err)
	}
	defer func() { _ = f.Close() }()
	if err := e.wipeRest(ctx, lv, tags, openDevice{f}, size); err != nil {
		return err
	}
	return e.awaitInSync(ctx, lv)
}

// A wipeable is an open device.
type wipeable interface {
	Name() string
	Sync() error
	// wipeSpan wipes one span. It returns false if the disk cannot discard, which is no error.
	wipeSpan(w volume.Wipe, at, length volume.Bytes) (bool, error)
}

// An openDevice is a block device that is open for writing.
type openDevice struct{ *os.File }

// wipeRest wipes the device from the recorded progress on, and records its own progress. A raid1 volume is wiped
// from the beginning, and its progress is not recorded, because it would not say which copies it applies to: the
// volume may be converted to one that consists of a copy that has failed meanwhile.
func (e *Engine) wipeRest(ctx context.Context, lv lvm.LogicalVolume, tags volume.Tags, f wipeable, size volume.Bytes) error {
	mirror := lv.Shape.Layout == volume.Raid1
	rec, err := e.records.read(lv.Group, lv.Name)
	if err != nil || rec.VolumeUUID != lv.UUID || mirror {
		rec = record{State: volume.Doomed, VolumeUUID: lv.UUID, Since: e.now()}
	}
	if tags.LUKS != "" && tags.Wipe == volume.WipeDiscard && rec.Wiped == 0 {
		if err := e.eraseHeader(ctx, lv, f, size); err != nil {
			return err
		}
	}
	for logged := false; rec.Wiped < size; {
		part := min(e.wipeProgressInterval, size-rec.Wiped)
		end, err := wipePart(ctx, f, tags.Wipe, rec.Wiped, part, e.wipeRate)
		if err != nil {
			return err
		}
		if end < rec.Wiped+part {
			e.logNotDiscarded(lv, tags)
			return nil
		}
		if err := f.Sync(); err != nil {
			return fmt.Errorf("wipe %s: %w", f.Name(), err)
		}
		if rec.Wiped += part; rec.Wiped < size {
			var err error
			if !mirror {
				err = e.records.write(lv.Group, lv.Name, rec)
			}
			switch {
			case err == nil:
				e.after("wipe part")
			case !logged:
				e.logUnrecorded(lv.Group, lv.Name, err) // after a kill, the next call wipes more again
				logged = true
			}
		}
	}
	return nil
}

// eraseHeader overwrites the header of an encrypted volume, without which only the header of a copy can decrypt the rest. It precedes a
// discard, which some disks do not support, and after which others keep the data.
//
// A full thin pool is no reason to keep a volume. It fails only writes to blocks that the volume shares with a copy, or
// does not have, and the zeros would not overwrite the content of either: the pool writes them elsewhere.
func (e *Engine) eraseHeader(ctx context.Context, lv lvm.LogicalVolume, f wipeable, size volume.Bytes) error {
	_, err := wipePart(ctx, f, volume.WipeZero, 0, min(volume.LUKSHeader, size), e.wipeRate)
	if err == nil {
		err = f.Sync()
	}
	switch {
	case lv.Shape.Layout == volume.Thin && errors.Is(err, unix.ENOSPC):
		e.log.WithError(err).WithField("volume", string(lv.Group)+"/"+string(lv.Name)).
			Warn("the header of the encrypted volume is only discarded, not overwritten everywhere: the thin pool is full, and parts of the header are shared with a copy or already discarded")
		return nil
	case err != nil:
		return fmt.Errorf("erase the header of encrypted volume %s/%s: %w", lv.Group, lv.Name, err)
	}
	e.after("erase header")
	return nil
}

// logNotDiscarded logs that a volume is removed with its content, although its class says discard.
func (e *Engine) logNotDiscarded(lv lvm.LogicalVolume, tags volume.Tags) {
	left := "what the volume held stays there until something overwrites it; use a class with wipe: zero if that matters"
	if tags.LUKS != "" {
		left = "what the volume held stays there, encrypted; its header was overwritten, so only the header and key of a copy, a snapshot or the source can read it"
	}
	e.log.WithField("volume", string(lv.Group)+"/"+string(lv.Name)).Warn("a disk of the removed volume cannot discard: " + left)
}

// wipePart wipes length bytes of f from the byte at on, at most rate per second, and returns the end of the
// wiped part, also with an error.
func wipePart(ctx context.Context, f wipeable, w volume.Wipe, at, length, rate volume.Bytes) (volume.Bytes, error) {
	step := stepAt(rate)
	for end := at + length; at < end; {
		start := time.Now()
		span := min(step, end-at)
		done, err := f.wipeSpan(w, at, span)
		if err != nil || !done {
			return at, err
		}
		at += span
		if err := pace(ctx, start, span, rate); err != nil {
			return at, fmt.Errorf("wipe %s: stopped at byte %d: %w", f.Name(), int64(at), err)
		}
	}
	return at, nil
}

// stepAt returns how much to wipe with one request.
func stepAt(rate volume.Bytes) volume.Bytes {
	if rate <= 0 {
		return wipeStep
	}
	return min(wipeStep, max(rate.RoundUp(volume.MiB)/4, volume.MiB))
}

func (d openDevice) wipeSpan(w volume.Wipe, at, length volume.Bytes) (bool, error) {
	request := uintptr(blkDiscard)
	if w == volume.WipeZero {
		request = blkZeroOut
	}
	span := [2]uint64{uint64(at), uint64(length)}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, d.Fd(), request, uintptr(unsafe.Pointer(&span)))
	if errno == unix.EOPNOTSUPP && w == volume.WipeDiscard {
		return false, nil
	}
	if errno != 0 {
		return false, fmt.Errorf("wipe %s at byte %d: %w", d.Name(), int64(at), errno)
	}
	return true, nil
}

// pace waits until length bytes since start average at most rate per second.
func pace(ctx context.Context, start time.Time, length, rate volume.Bytes) error {
	if rate <= 0 {
		return ctx.Err()
	}
	due := time.Duration(float64(length) / float64(rate) * float64(time.Second))
	return pause.For(ctx, due-time.Since(start))
}
