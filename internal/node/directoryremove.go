package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/pause"
	"github.com/flexlvm/flexlvm/internal/quota"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// maxFreeWait is how long a removal waits for XFS to free deleted files, which XFS does in the background.
// Files that take longer are held open by a process.
const maxFreeWait = 10 * time.Second

// awaitFreed waits until XFS no longer counts a volume's data: once the volume is gone, that usage would look
// like space that a tenant has used outside its quota, and would have another volume evicted.
func (e *Engine) awaitFreed(ctx context.Context, p *directoryPool, rec directoryRecord) error {
	for end := time.Now().Add(maxFreeWait); ; {
		used, err := quota.ReadOf(p.device.Path, rec.Project)
		if err != nil || used.Used == 0 || time.Now().After(end) {
			return err
		}
		if pause.For(ctx, 20*time.Millisecond) != nil {
			return context.Cause(ctx)
		}
	}
}

// clearQuota clears the quota of a volume whose data is deleted. It holds the pool's lock, so that a
// concurrent ensureQuotas does not restore the quota.
func (e *Engine) clearQuota(ctx context.Context, p *directoryPool, rec directoryRecord) error {
	release, err := e.lockPool(ctx, p.device.Group, p.name)
	if err != nil {
		return err
	}
	defer release()
	if err := quota.SetOf(p.device.Path, rec.Project, quota.Limit{}); err != nil {
		return err
	}
	e.after("clear quota")
	return nil
}

// clearData removes the directory of a volume that its pods have seen.
func (e *Engine) clearData(ctx context.Context, p *directoryPool, data string) error {
	root, err := p.Open(data)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	// Directories that clearTree moves up may belong to another project, and the volume's own project may be
	// full.
	if err := errors.Join(quota.Disown(root), root.Close()); err != nil {
		return err
	}
	e.after("disown directory")
	if err := clearTree(ctx, p.Root, data, e.after); err != nil {
		return err
	}
	e.after("clear directory")
	return nil
}

// dropRecord removes the rest of a volume's directory; without its record it no longer is a volume.
func (p *directoryPool) dropRecord(n volume.Name, after func(step string)) error {
	dir := volumePath(n)
	for _, name := range []string{path.Join(dir, spareFile), path.Join(dir, recordFile), dir} {
		if err := p.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove volume %s: %w", n, err)
		}
		after("remove " + name)
	}
	return syncDir(p.Root, path.Dir(dir))
}

// clearTree removes a directory and everything in it, whatever a tenant has left there. It may be called
// again after it was killed. It does not recurse, because tenants can nest directories arbitrarily deep: it
// moves the entries of a subdirectory up and removes them later.
func clearTree(ctx context.Context, root *os.Root, name string, after func(step string)) error {
	top, err := root.OpenRoot(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	err = clearIn(ctx, top, after)
	if err = errors.Join(err, top.Close()); err != nil {
		return fmt.Errorf("empty %s: %w", name, err)
	}
	return root.Remove(name)
}

// entriesAtOnce is how many entries of a directory are read at a time.
const entriesAtOnce = 1000

// clearIn empties top. Moving directories may need space that the file system does not have, so clearIn also
// removes the entries that need none, which frees some.
func clearIn(ctx context.Context, top *os.Root, after func(string)) error {
	for moved := 0; ; {
		entries, err := someOf(top)
		if err != nil || len(entries) == 0 {
			return err
		}
		gone, full := 0, error(nil)
		for _, e := range entries {
			switch err := clearEntry(ctx, top, e, &moved, after); {
			case err == nil:
				gone++
			case errors.Is(err, unix.ENOSPC):
				full = err
			default:
				return err
			}
		}
		if gone == 0 {
			return full
		}
	}
}

// clearEntry removes an entry of top and everything in it.
func clearEntry(ctx context.Context, top *os.Root, e fs.DirEntry, moved *int, after func(string)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := removeEntry(top, e)
	if err == nil || !e.IsDir() {
		return err
	}
	if err := emptyInto(ctx, top, e.Name(), moved, after); err != nil {
		return err
	}
	return top.Remove(e.Name())
}

// emptyInto removes the entries of a directory of top, except for non-empty directories, which it moves into
// top.
func emptyInto(ctx context.Context, top *os.Root, name string, moved *int, after func(string)) error {
	dir, err := top.OpenRoot(name)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	for full := error(nil); ; {
		entries, err := someOf(dir)
		if err != nil || len(entries) == 0 {
			return err
		}
		for _, e := range entries {
			if err := ctx.Err(); err != nil {
				return err
			}
			err := removeEntry(dir, e)
			if err == nil {
				continue
			}
			if !e.IsDir() {
				return err
			}
			switch err := moveUp(top, path.Join(name, e.Name()), moved); {
			case errors.Is(err, unix.ENOSPC):
				full = err
			case err != nil:
				return err
			default:
				after("move a directory up")
			}
		}
		if full != nil {
			return full
		}
	}
}

// removeEntry removes an entry of a directory unless it is a non-empty directory. A tenant may have made
// either immutable, which stops root as well.
func removeEntry(dir *os.Root, e fs.DirEntry) error {
	err := dir.Remove(e.Name())
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	if err := unprotect(dir, "."); err != nil {
		return err
	}
	if e.IsDir() || e.Type().IsRegular() {
		if err := unprotect(dir, e.Name()); err != nil {
			return err
		}
	}
	return dir.Remove(e.Name())
}

func unprotect(dir *os.Root, name string) error {
	f, err := dir.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	return errors.Join(quota.Unprotect(f), f.Close())
}

// moveUp moves a directory into top, under a name that is free there.
func moveUp(top *os.Root, from string, moved *int) error {
	for {
		*moved++
		to := fmt.Sprintf("moved-%d", *moved)
		if _, err := top.Lstat(to); errors.Is(err, fs.ErrNotExist) {
			return top.Rename(from, to)
		} else if err != nil {
			return err
		}
	}
}

func someOf(dir *os.Root) ([]fs.DirEntry, error) {
	f, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	entries, err := f.ReadDir(entriesAtOnce)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return entries, errors.Join(err, f.Close())
}
