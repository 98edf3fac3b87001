//go:build s3

package suite

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// small makes the destination a file system with that size and number of inodes.
func (b *bed) small(options string) {
	b.t.Helper()
	require.Zero(b.t, os.Geteuid(), "it mounts a small file system: run it as root")
	require.NoError(b.t, unix.Mount("small", b.dest, "tmpfs", 0, options))
	b.t.Cleanup(func() { require.NoError(b.t, unix.Unmount(b.dest, 0)) })
}

func TestNoRoom(t *testing.T) {
	objects := tree{"a": noise(50, 3<<20), "b": noise(51, 3<<20), "c": noise(52, 3<<20), "d": noise(53, 3<<20)}
	t.Run("known before", func(t *testing.T) {
		b := newBed(t)
		b.small("size=8m")
		b.put(objects)
		o := b.fetch(b.url(""))
		require.Equal(t, 1, o.code, o.stderr)
		require.Regexp(t, `12(\.0)? ?Mi`, o.result.Message, "it says how much is wanted")
		require.Regexp(t, `(8|7\.\d+)(\.0)? ?Mi`, o.result.Message, "and how much there is")
		require.False(t, o.result.Retryable)
		require.Zero(t, b.proxy.Sent(""))
		require.Empty(t, b.files())
	})
	t.Run("found out", func(t *testing.T) {
		b := newBed(t)
		b.small("size=8m")
		b.put(objects)
		o := b.fetch(b.url(""), "--capacity-check=false")
		require.Equal(t, 1, o.code, o.stderr)
		require.Contains(t, o.result.Message, "room")
		require.False(t, b.complete())
		b.whole(objects)
	})
	many := tree{}
	for i := range 50 {
		many[fmt.Sprintf("d%d/f", i)] = "x"
	}
	t.Run("no inodes, known before", func(t *testing.T) {
		b := newBed(t)
		b.small("size=8m,nr_inodes=60")
		b.put(many)
		o := b.fetch(b.url(""))
		require.Equal(t, 1, o.code, o.stderr)
		require.Contains(t, o.result.Message, "inodes")
		require.Empty(t, b.files())
	})
	t.Run("no inodes, found out", func(t *testing.T) {
		b := newBed(t)
		b.small("size=8m,nr_inodes=60")
		b.put(many)
		o := b.fetch(b.url(""), "--capacity-check=false")
		require.Equal(t, 1, o.code, o.stderr)
		require.False(t, b.complete())
		b.whole(many)
	})
}

// Files that were already fetched need no more space.
func TestRoomForTheRest(t *testing.T) {
	b := newBed(t)
	b.small("size=16m")
	objects := tree{"a": noise(54, 10<<20)}
	b.put(objects)
	require.Zero(t, b.fetch(b.url("")).code)
	objects["b"] = noise(55, 3<<20)
	b.put(objects)
	o := b.fetch(b.url(""), "--sync")
	require.Zero(t, o.code, o.stderr)
	require.Len(t, b.whole(objects), 2)
}

func TestDestinationIsNoFolder(t *testing.T) {
	b := newBed(t)
	b.put(some())
	require.NoError(t, os.RemoveAll(b.dest))
	require.NoError(t, os.WriteFile(b.dest, []byte("file"), 0o600))
	o := b.fetch(b.url(""))
	require.Equal(t, 1, o.code, o.stderr)
	require.Contains(t, o.result.Message, filepath.Base(b.dest))
}
