package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/dm"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// The bounds of how much is trimmed at once; in between, it is what the rate allows in a second.
const (
	minTrimStep = 16 * volume.MiB
	maxTrimStep = volume.GiB
)

// Trim discards the blocks that the file system of a ready, mounted volume does not use, to return them to
// its thin pool or its disk, at an average of at most rate bytes per second; 0 is unbounded. It returns how
// much it discarded, also with an error: ErrNotMounted when the last mount is gone, lvm.ErrSuspended,
// mount.ErrCannotTrim, or any other. When it is done, it records the time. Killed before, it has discarded
// only free blocks, and the next call starts over.
//
// It acquires no lock: the kernel discards only blocks that the mounted file system has free, even while that
// allocates, grows or is unmounted. With the volume's lock, pods could not mount and unmount while a disk
// discards. Nor does it conflict with a removal: that needs a device which is not open, and Trim itself keeps
// this one mounted until its step is done. A removal that is refused for that is retried.
func (e *Engine) Trim(ctx context.Context, ref Ref, rate volume.Bytes) (volume.Bytes, error) {
	lv, tags, err := e.lookUpOwned(ctx, ref, ref.Name)
	if err != nil {
		return 0, err
	}
	if err := ref.checkUUID(lv); err != nil {
		return 0, err
	}
	if tags.State != volume.Ready {
		return 0, refused("volume %s is %s; only one that is ready is trimmed", ref, tags.State)
	}
	if tags.FSType == volume.Raw {
		return 0, refused("volume %s has volumeMode Block; its pod discards what it does not use", ref)
	}
	ref.UUID = lv.UUID
	var t trimming
	err = e.whileMounted(ctx, ref, tags, func(c content, fs *mount.Attached) (err error) {
		t, err = c.mounted(c.path).trimmable(fs.Root())
		return err
	})
	if err != nil {
		return 0, err
	}
	t.rate = rate
	sum, err := e.trimAll(ctx, ref, tags, t)
	if err != nil {
		return sum, err
	}
	e.after("trim")
	return sum, e.noteTrimmed(ctx, ref.UUID)
}

// trimming describes what is trimmed, and how fast.
type trimming struct {
	size volume.Bytes // of the file system
	part volume.Bytes // no free extent crosses the end of a part
	// whole: each step must be a whole part.
	whole bool
	rate  volume.Bytes // 0 is no bound
}

// trimAll trims step by step; no step crosses the end of a part.
func (e *Engine) trimAll(ctx context.Context, ref Ref, tags volume.Tags, t trimming) (sum volume.Bytes, err error) {
	step := maxTrimStep
	if t.rate > 0 {
		step = min(step, max(t.rate.RoundUp(volume.MiB), minTrimStep))
	}
	if t.whole {
		step = t.part
	}
	for at := volume.Bytes(0); at < t.size; {
		start := time.Now()
		part := min(step, t.size-at, t.part-at%t.part)
		var n volume.Bytes
		err := e.whileMounted(ctx, ref, tags, func(_ content, fs *mount.Attached) (err error) {
			n, err = fs.Trim(at, part)
			return err
		})
		sum += n
		if err != nil {
			return sum, err
		}
		e.after("trim step")
		if at += part; n > part {
			// This kernel discards whole extents: one that crosses the end of a step is discarded again in
			// each step that it reaches into. No extent crosses the end of its part.
			step = t.part
		}
		if err := pace(ctx, start, n, t.rate); err != nil {
			return sum, fmt.Errorf("trim volume %s: stopped at byte %d: %w", ref, int64(at), err)
		}
	}
	return sum, nil
}

// whileMounted calls work with a clone of one of the volume's mounts, and unmounts the clone afterwards: the
// device stays open as long as the clone exists. Pods can unmount the original meanwhile.
func (e *Engine) whileMounted(ctx context.Context, ref Ref, tags volume.Tags, work func(content, *mount.Attached) error) error {
	d, err := e.usableDevice(ctx, ref.Group, ref.Name)
	if err != nil {
		return err
	}
	if d.VolumeUUID != ref.UUID {
		return refused("volume %s was replaced: its UUID is %s; expected %s", ref, d.VolumeUUID, ref.UUID)
	}
	c, err := e.openedContent(ctx, d, tags)
	if errors.Is(err, dm.ErrNoMapping) {
		return fmt.Errorf("%w: volume %s", ErrNotMounted, ref)
	}
	if err != nil {
		return err
	}
	mounted, err := mount.ByDevice()
	if err != nil {
		return err
	}
	var skipped error
	for _, point := range mounted[c.number] {
		fs, err := mount.Clone(point.Path)
		if err != nil { // gone, or a file that is mounted alone
			skipped = errors.Join(skipped, err)
			continue
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(fs.Root().Fd()), &st); err != nil || st.Dev != c.number { // gone, or another is on top
			skipped = errors.Join(skipped, err, fs.Close())
			continue
		}
		return errors.Join(work(c, fs), fs.Close())
	}
	return errors.Join(fmt.Errorf("%w: volume %s", ErrNotMounted, ref), skipped)
}
