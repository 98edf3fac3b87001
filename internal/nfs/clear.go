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
// does not answer. It never leaves the directory: every name is looked up in an open directory, no link
// is followed out of it (os.Root), and a file system that is mounted in it is an error.
//
// Tenants can nest directories as deep as they like, so nothing here recurses: the entries of a
// subdirectory are moved up, under names that a tenant cannot have guessed, and removed later. A pod of
// the tenant that still runs can cause more work, but no harm.
func clearSome(ctx context.Context, root *os.Root, name string) (empty bool, err error) {
	if err := nfsmark.CheckOwn(root, name); err != nil {
		return false, err
	}
	top, err := enter(root, name)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, top.Close()) }()
	c := &clearing{top: top, left: atOnce}
	if deadline, bounded := ctx.Deadline(); bounded {
		c.until = time.Now().Add(time.Until(deadline) / 2)
	}
	for !c.spent() {
		entries, err := list(top, c.left)
		if err != nil {
			return false, err
		}
		if len(entries) == 0 {
			return true, root.Remove(name)
		}
		for _, e := range entries {
			if c.spent() {
				return false, nil
			}
			if err := c.remove(ctx, e); err != nil {
				return false, err
			}
		}
	}
	return false, nil
}

type clearing struct {
	top   *os.Root
	left  int       // entries that may still be removed
	until time.Time // zero: without end
}

// spent tells that it is time to give way.
func (c *clearing) spent() bool {
	return c.left <= 0 || !c.until.IsZero() && time.Now().After(c.until)
}

// remove removes an entry of the top. Of a directory it removes the files, and
// moves the directories up.
func (c *clearing) remove(ctx context.Context, e fs.DirEntry) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.left--
	err := c.top.Remove(e.Name())
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if !e.IsDir() || !notEmpty(err) {
		return err
	}
	return c.flatten(ctx, e.Name())
}

// flatten empties a directory of the top as far as the count allows, and removes
// it if it got that far.
func (c *clearing) flatten(ctx context.Context, name string) (err error) {
	if err := nfsmark.CheckOwn(c.top, name); err != nil {
		return err
	}
	dir, err := enter(c.top, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	for !c.spent() {
		entries, err := list(dir, c.left)
		if err != nil {
			return err
		}
		if len(entries) == 0 {
			return ignoreGone(c.top.Remove(name))
		}
		for _, e := range entries {
			if err := ctx.Err(); err != nil || c.spent() {
				return err
			}
			c.left--
			if e.IsDir() {
				err = c.top.Rename(path.Join(name, e.Name()), rand.Text())
			} else {
				err = dir.Remove(e.Name())
			}
			if err := ignoreGone(err); err != nil {
				return err
			}
		}
	}
	return nil
}

// enter opens a directory for work in it. Between the look and the opening
// somebody may have put a link in its place; then it is not what was looked at.
func enter(root *os.Root, name string) (*os.Root, error) {
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

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
