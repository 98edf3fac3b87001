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

// How much of a file system is trimmed at once: what may be in a second, between these.
const (
	leastTrimStep = 16 * volume.MiB
	mostTrimStep  = volume.GiB
)

// Trim discards what the file system of a ready, mounted volume does not use, so that its
// thin pool, or its disk, has that back; at most rate bytes in a second on average, 0 is no
// bound. It returns how much that was, also beside an error: ErrNotMounted when the last
// mount has gone, lvm.ErrSuspended, mount.ErrCannotTrim, or any other. Once it has come to
// the end, it notes when. Killed before, it has discarded free blocks and nothing else, and
// the next call begins anew.
//
// It takes no lock: the kernel discards only what the mounted file system has free, while
// that allocates, grows or is unmounted beside it. A volume's lock would keep pods from
// mounting and unmounting while a disk discards. Nor can a removal meet it: that needs a
// device which is not open, and this one is mounted, by Trim itself until its step is
// done. A removal that is refused for that is tried again.
func (e *Engine) Trim(ctx context.Context, ref Ref, rate volume.Bytes) (volume.Bytes, error) {
	lv, tags, err := e.lookUpOwned(ctx, ref, ref.Name)
	if err != nil {
		return 0, err
	}
	if err := ref.meant(lv); err != nil {
		return 0, err
	}
	if tags.State != volume.Ready {
		return 0, refused("volume %s is %s; only one that is ready is trimmed", ref, tags.State)
	}
	if tags.FSType == volume.Raw {
		return 0, refused("volume %s has volumeMode Block; whoever has it discards what it does not use", ref)
	}
	ref.UUID = lv.UUID
	var of trimming
	err = e.whileMounted(ctx, ref, tags, func(c content, fs *mount.Attached) (err error) {
		of, err = c.mounted(c.path).trimmable(fs.Root())
		return err
	})
	if err != nil {
		return 0, err
	}
	of.rate = rate
	sum, err := e.trimAll(ctx, ref, tags, of)
	if err != nil {
		return sum, err
	}
	e.after("trim")
	return sum, e.noteTrimmed(ctx, ref.UUID)
}

// trimming is what is trimmed, and how fast.
type trimming struct {
	size volume.Bytes // of the file system
	part volume.Bytes // no free extent reaches beyond a part of this size
	// whole: no step may end within a part.
	whole bool
	rate  volume.Bytes // 0 is no bound
}

// trimAll trims step after step, none across the parts of the file system.
func (e *Engine) trimAll(ctx context.Context, ref Ref, tags volume.Tags, of trimming) (sum volume.Bytes, err error) {
	step := mostTrimStep
	if of.rate > 0 {
		step = min(step, max(of.rate.RoundUp(volume.MiB), leastTrimStep))
	}
	if of.whole {
		step = of.part
	}
	for at := volume.Bytes(0); at < of.size; {
		start := time.Now()
		part := min(step, of.size-at, of.part-at%of.part)
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
			// This kernel discards extents as a whole, those that reach beyond the step
			// once for each that they reach into. None reaches beyond its part.
			step = of.part
		}
		if err := pace(ctx, start, n, of.rate); err != nil {
			return sum, fmt.Errorf("trim volume %s: stopped at byte %d: %w", ref, int64(at), err)
		}
	}
	return sum, nil
}

// whileMounted calls work with a mount of the very volume that it makes of one which is
// there, and keeps no longer: the device is open as long as that is. The mount that a pod
// uses can be unmounted meanwhile.
func (e *Engine) whileMounted(ctx context.Context, ref Ref, tags volume.Tags, work func(content, *mount.Attached) error) error {
	d, err := e.usable(ctx, ref.Group, ref.Name)
	if err != nil {
		return err
	}
	if d.VolumeUUID != ref.UUID {
		return refused("volume %s is another by now: its UUID is %s, and %s is meant", ref, d.VolumeUUID, ref.UUID)
	}
	c, err := e.opened(ctx, d, tags)
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
