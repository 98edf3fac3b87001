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

// atOnce is the maximum number of entries that one call of clearSome removes.
const atOnce = 1000

// clearSome removes up to atOnce entries of a directory, and the directory itself once it is empty,
// which empty reports. It stops halfway to its deadline, so that a slow server is not mistaken for one
// that does not respond, but not before it has removed something: the next call starts at the top
// again. It never leaves the directory: every name is resolved in an open directory, no link is
// followed out of it (os.Root), and a file system that is mounted in it is an error.
//
// Tenants can nest directories arbitrarily deep, so nothing here recurses: the subdirectories of a
// directory are moved up, under names that a tenant cannot have guessed, and removed later. The move
// may need room that a full directory or server does not have; then clearSome follows one path down to
// its end, and removes what it can on the way. A pod of the tenant that still runs can cause more work,
// but no harm.
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
	until  time.Time // zero: no deadline
	full   error     // the last error due to lack of room
}

// spent reports whether to stop: no more entries may be removed, or some are removed and the time is
// over.
func (c *clearing) spent() bool {
	return c.left <= 0 || c.left < atOnce && !c.until.IsZero() && time.Now().After(c.until)
}

// done counts an entry that was removed or moved. Lack of room is no error here: removing other entries
// may free some.
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

// run removes entries of the top until it is empty or it is time to stop. Lack of room is an error only
// if nothing could be removed.
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

// remove removes an entry of the top. A directory that is not empty is flattened: its files are
// removed, and its directories moved up.
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

// flatten empties a directory of the top as far as the limit and the room allow, and removes it once it
// is empty.
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

// takeOut removes a file of dir, whose name in the top is name, or moves a directory up. Without room
// for the move, it removes something in the directory instead.
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

// descend removes a directory if it is empty. Otherwise it follows one path down to its end, and
// removes files and empty directories on the way. Unless ctx ends first, it removes at least one entry.
// It moves nothing, so it needs no room.
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

// strip removes files and empty directories from a directory, and returns a remaining directory, if
// there is one.
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

// enter opens a directory of the same file system. Between the check and the opening, somebody may
// replace the directory, for example by a link; that is an error.
func enter(root *os.Root, name string) (*os.Root, error) {
	if err := nfsmark.CheckPlainDirectory(root, name); err != nil {
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

// list returns up to n entries of a directory. It opens the directory again each time: continuing to
// read while entries are removed may skip others.
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

// noRoom reports whether the file system, or a directory's limit, is full.
func noRoom(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
