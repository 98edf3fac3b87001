package nfs

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"
	"time"

	"github.com/flexlvm/flexlvm/internal/nfsmark"
)

// atOnce is how many entries one call of clearSome removes at most.
const atOnce = 1000

// clearSome removes up to atOnce entries of a directory, and the directory itself once it is empty,
// which empty reports. It ends halfway to its deadline, so that a slow server is not taken for one that
// does not answer, but not before something is gone: the next call begins at the top again. It never
// leaves the directory: every name is looked up in an open directory, no link is followed out of it
// (os.Root), and a file system that is mounted in it is an error.
//
// Tenants can nest directories as deep as they like, so nothing here recurses: the entries of a
// subdirectory are moved up, under names that a tenant cannot have guessed, and removed later. That may
// need room that a full directory or server has not; then a path is followed down to its end, and what is
// on the way removed. A pod of the tenant that still runs can cause more work, but no harm.
func clearSome(ctx context.Context, root *os.Root, name string) (empty bool, err error) {
	top, err := enter(root, name)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, top.Close()) }()
	c := &clearing{top: top, moveUp: top.Rename, left: atOnce}
	if deadline, bounded := ctx.Deadline(); bounded {
		c.until = time.Now().Add(time.Until(deadline) / 2)
	}
	if empty, err = c.run(ctx); err != nil || !empty {
		return false, err
	}
	return true, root.Remove(name)
}

type clearing struct {
	top    *os.Root
	moveUp func(from, to string) error
	left   int       // entries that may still be removed or moved
	until  time.Time // zero: without end
	full   error     // what has failed for want of room
}

// spent reports whether it is time to give way: as many are gone as may be, or some and the time is over.
func (c *clearing) spent() bool {
	return c.left <= 0 || c.left < atOnce && !c.until.IsZero() && time.Now().After(c.until)
}

// done counts what has been removed or moved. For want of room others may still go, and give some.
func (c *clearing) done(err error) error {
	switch {
	case err == nil:
		c.left--
	case noRoom(err):
		c.full = err
		return nil
	}
	return ignoreGone(err)
}

// run removes entries of the top until it is empty or it is time to give way. Want of room is an error
// only if nothing could go.
func (c *clearing) run(ctx context.Context) (empty bool, err error) {
	for before := 0; c.left != before && !c.spent(); {
		before = c.left
		entries, err := list(c.top, c.left)
		if err != nil || len(entries) == 0 {
			return err == nil, err
		}
		for _, e := range entries {
			if c.spent() {
				break
			}
			if err := c.remove(ctx, e); err != nil {
				return false, err
			}
		}
	}
	if c.left < atOnce {
		return false, nil
	}
	return false, c.full
}

// remove removes an entry of the top. Of a directory it removes the files, and
// moves the directories up.
func (c *clearing) remove(ctx context.Context, e fs.DirEntry) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := c.top.Remove(e.Name())
	if e.IsDir() && notEmpty(err) {
		return c.flatten(ctx, e.Name())
	}
	return c.done(err)
}

// flatten empties a directory of the top as far as the count and the room allow, and removes
// it if it got that far.
func (c *clearing) flatten(ctx context.Context, name string) (err error) {
	dir, err := enter(c.top, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	for before := 0; c.left != before && !c.spent(); {
		before = c.left
		entries, err := list(dir, c.left)
		if err != nil {
			return err
		}
		if len(entries) == 0 {
			return c.done(c.top.Remove(name))
		}
		for _, e := range entries {
			if err := ctx.Err(); err != nil || c.spent() {
				return err
			}
			if err := c.takeOut(ctx, dir, name, e); err != nil {
				return err
			}
		}
	}
	return nil
}

// takeOut removes a file of dir, which has that name in the top, or moves a directory up. Where there is
// no room to move it, it removes something in it.
func (c *clearing) takeOut(ctx context.Context, dir *os.Root, name string, e fs.DirEntry) error {
	if !e.IsDir() {
		return c.done(dir.Remove(e.Name()))
	}
	err := c.moveUp(path.Join(name, e.Name()), rand.Text())
	if !noRoom(err) {
		return c.done(err)
	}
	c.full = err
	return c.descend(ctx, dir, e.Name())
}

// descend removes a directory if it is empty. Otherwise it follows one path down to its end, and removes
// the files and the empty directories on the way, and with them something at least, unless ctx ends before
// the end of the path. That moves nothing, so it needs no room.
func (c *clearing) descend(ctx context.Context, parent *os.Root, name string) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := parent.Remove(name); !notEmpty(err) {
		return c.done(err)
	}
	at := parent
	defer func() {
		if at != parent {
			err = errors.Join(err, at.Close())
		}
	}()
	for name != "" && !c.spent() {
		next, err := enter(at, name)
		if err != nil {
			return err
		}
		if at != parent {
			err = at.Close()
		}
		if at = next; err == nil {
			name, err = c.strip(ctx, at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// strip removes entries of a directory, and returns a directory among them that is not empty, if there is
// one.
func (c *clearing) strip(ctx context.Context, dir *os.Root) (remaining string, err error) {
	entries, err := list(dir, c.left)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if err := ctx.Err(); err != nil || c.spent() {
			return "", err
		}
		err := dir.Remove(e.Name())
		if e.IsDir() && notEmpty(err) {
			remaining = e.Name()
			continue
		}
		if err := c.done(err); err != nil {
			return "", err
		}
	}
	return remaining, nil
}

// enter opens a directory of the same file system for work in it. Between the look and the opening
// somebody may have put a link in its place; then it is not what was looked at.
func enter(root *os.Root, name string) (*os.Root, error) {
	if err := nfsmark.CheckOwn(root, name); err != nil {
		return nil, err
	}
	seen, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	dir, err := nfsmark.Enter(root, name)
	if err != nil {
		return nil, err
	}
	opened, err := dir.Stat(".")
	if err == nil && !os.SameFile(seen, opened) {
		err = fmt.Errorf("open directory %q: another took its place in that moment", name)
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// list gives up to n entries of a directory. It is opened anew each time: reading
// on while entries are removed may pass over others.
func list(dir *os.Root, n int) (entries []fs.DirEntry, err error) {
	f, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	entries, err = f.ReadDir(n)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return entries, errors.Join(err, f.Close())
}

func notEmpty(err error) bool {
	return errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST)
}

// noRoom reports whether the file system, or the limit of a directory, has no room left.
func noRoom(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
