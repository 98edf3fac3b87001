package nfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// clearing opens the directory of the volume as clearSome does.
func (b *bait) clearing() *clearing {
	b.t.Helper()
	top, err := enter(b.root, here.name)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { require.NoError(b.t, top.Close()) })
	return &clearing{top: top, moveUp: top.Rename, left: atOnce}
}

// clearAll calls run until the directory is empty.
func (b *bait) clearAll(c *clearing) {
	b.t.Helper()
	for calls := 1; ; calls++ {
		c.left, c.full = atOnce, nil
		empty, err := c.run(b.t.Context())
		require.NoError(b.t, err)
		if empty {
			return
		}
		require.Less(b.t, calls, 1000)
	}
}

// XFS does not move a directory into another one whose inode has no room for the name, if the file system is full.
// Moving alone cannot empty a full directory.
func TestClearWithoutRoomToMove(t *testing.T) {
	for name, errno := range map[string]error{"no room": syscall.ENOSPC, "limit": syscall.EDQUOT} {
		for after := range 2 { // number of moves that succeed
			t.Run(fmt.Sprint(name, after), func(t *testing.T) {
				b := newBait(t)
				b.make()
				b.fill(here.name)
				for i := range 50 {
					leaf := b.path(here.name, "data", fmt.Sprint(i), "x", "y")
					require.NoError(t, os.MkdirAll(leaf, 0o755))
					require.NoError(t, os.WriteFile(filepath.Join(leaf, "file"), nil, 0o644))
					require.NoError(t, os.MkdirAll(b.path(here.name, "data", fmt.Sprint(i), "empty"), 0o755))
				}
				require.NoError(t, os.MkdirAll(b.path(here.name, strings.Repeat("d/", 50)), 0o755))
				c := b.clearing()
				moved := 0
				c.moveUp = func(from, to string) error {
					if moved++; moved <= after {
						return c.top.Rename(from, to)
					}
					return &os.LinkError{Op: "renameat", Old: from, New: to, Err: errno}
				}
				b.clearAll(c)
				require.Greater(t, moved, after)
				b.removeAll()
				require.Empty(t, b.names())
			})
		}
	}
}

// A path is followed to its end even after the deadline, because the next call would start at its top again.
func TestClearOfADeepPath(t *testing.T) {
	b := newBait(t)
	b.make()
	deep := b.path(here.name, strings.Repeat("d/", 50))
	require.NoError(t, os.MkdirAll(deep, 0o755))
	c := b.clearing()
	c.until = time.Now().Add(-time.Second)
	c.moveUp = func(string, string) error { return syscall.ENOSPC }
	empty, err := c.run(t.Context())
	require.NoError(t, err)
	require.False(t, empty)
	require.Equal(t, atOnce-1, c.left, "then it gives way")
	require.NoDirExists(t, deep)
	require.DirExists(t, filepath.Dir(deep))
	b.clearAll(c)
}

// Lack of room is an error only if nothing can be removed, and the attempts are bounded.
func TestClearWhereNothingGoes(t *testing.T) {
	b := newBait(t)
	b.make()
	require.NoError(t, os.MkdirAll(b.path(here.name, "data", "sub"), 0o755))
	c := b.clearing()
	c.moveUp = func(string, string) error {
		return errors.Join(syscall.ENOSPC, os.Remove(b.path(here.name, "data", "sub"))) // a pod that still runs
	}
	_, err := c.run(t.Context())
	require.ErrorIs(t, err, syscall.ENOSPC)

	require.NoError(t, os.MkdirAll(b.path(here.name, "data", "sub", "sub"), 0o755))
	c.full = nil
	c.moveUp = func(string, string) error { return syscall.EIO }
	_, err = c.run(t.Context())
	require.ErrorIs(t, err, syscall.EIO, "any other error ends it at once")

	ended, cancel := context.WithCancel(t.Context())
	c.moveUp = func(string, string) error {
		cancel()
		return syscall.ENOSPC
	}
	_, err = c.run(ended)
	require.ErrorIs(t, err, context.Canceled)
	require.DirExists(t, b.path(here.name, "data", "sub", "sub"))
}
