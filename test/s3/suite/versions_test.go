//go:build s3

package suite

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/test/s3"
)

func (b *bed) version(number int) string {
	return filepath.Join(b.dest, protocol.VersionsDir, strconv.Itoa(number))
}

func (b *bed) currentVersion() int {
	b.t.Helper()
	data, err := os.ReadFile(filepath.Join(b.dest, protocol.CurrentFile))
	require.NoError(b.t, err)
	number, err := strconv.Atoi(string(data[:max(0, len(data)-1)]))
	require.NoError(b.t, err)
	return number
}

// requireVersion checks that a version is complete and has exactly these files.
func (b *bed) requireVersion(number int, want tree, when string) {
	b.t.Helper()
	require.FileExists(b.t, filepath.Join(b.version(number), ".flexlvm/complete"), when)
	found := filesIn(b.t, b.version(number))
	require.ElementsMatch(b.t, slices.Collect(maps.Keys(want)), slices.Collect(maps.Keys(found)), "version %d %s", number, when)
	for name, content := range want {
		require.True(b.t, content == found[name], "%s of version %d is not what it should be %s", name, number, when)
	}
}

// enlarge changes the limits of the destination's small file system.
func (b *bed) enlarge(options string) {
	b.t.Helper()
	require.NoError(b.t, unix.Mount("small", b.dest, "tmpfs", unix.MS_REMOUNT, options))
}

// fill uses up the destination's space, as another process may.
func (b *bed) fill() {
	file, err := os.Create(filepath.Join(b.dest, "theirs"))
	for block := make([]byte, 4<<10); err == nil; {
		_, err = file.Write(block)
	}
	if file == nil || file.Close() != nil {
		b.t.Error("there is no file that takes the room")
	}
}

// A version that runs out of space leaves the previous one unchanged, and is completed when there is
// more space.
func TestVersionWithoutRoom(t *testing.T) {
	one := tree{"kept": noise(900, 1<<20), "changes": noise(901, 1<<20), "goes": noise(902, 1<<20)}
	two := tree{"kept": one["kept"], "changes": noise(903, 1<<20), "comes": noise(904, 6<<20), "more": noise(905, 3<<20)}
	deep, deeper := tree{}, tree{}
	for i := range 20 {
		deep[fmt.Sprintf("%02d/f", i)], deeper[fmt.Sprintf("%02d/f", i)] = "x", "x"
		deeper[fmt.Sprintf("more/%02d", i)] = noise(uint64(906+i), 100)
	}
	for name, c := range map[string]roomless{
		"amid an object":          {one: one, two: two, room: "size=8m", more: "size=40m", unchecked: true},
		"taken by others":         {one: one, two: two, room: "size=24m", more: "size=60m", fault: s3.Fault{Method: "GET", Path: "/comes"}},
		"taken when all is there": {one: one, two: two, room: "size=24m", more: "size=60m", fault: s3.Fault{Method: "GET", Query: "list-type", Skip: 1}, all: true},
		// tmpfs counts each link as an inode.
		"no inodes for links": {one: deep, two: deeper, room: "size=8m,nr_inodes=85", more: "size=8m,nr_inodes=300", unchecked: true},
		"no inodes for files": {one: deep, two: deeper, room: "size=8m,nr_inodes=118", more: "size=8m,nr_inodes=300", unchecked: true},
	} {
		t.Run(name, func(t *testing.T) { c.test(newBed(t)) })
	}
}

// roomless is a source that changes from one to two, with a destination that has space for one version.
type roomless struct {
	one, two   tree
	room, more string // of the destination, at first and later
	// fault selects the request before which others use up the space. It is empty if there is too
	// little anyway.
	fault s3.Fault
	// unchecked turns off the loader's capacity check. all means that everything was fetched before.
	unchecked, all bool
}

func (c roomless) test(b *bed) {
	b.t.Helper()
	b.small(c.room)
	b.put(c.one)
	load := func(flags ...string) outcome {
		return b.fetch(b.url(""), append(flags, "--versions", b.dest, "--sync", "--parallel", "4")...)
	}
	o := load()
	require.Zero(b.t, o.code, o.stderr)
	b.requireVersion(1, c.one, "at first")
	b.put(c.two)
	for name := range c.one {
		if _, there := c.two[name]; !there {
			require.NoError(b.t, server.Remove(b.ctx, b.bucket, name))
		}
	}
	if c.fault.Method != "" {
		c.fault.Times, c.fault.Before = 1, b.fill
		b.proxy.Inject(c.fault)
	}
	flags := []string{}
	if c.unchecked {
		flags = append(flags, "--capacity-check=false")
	}
	const foundOut, known = "no room left; make the volume larger or select less", "no room: .* are needed, and the destination has"
	for _, message := range []string{foundOut, foundOut + "|" + known} { // the second attempt fails, too
		o = load(flags...)
		require.Equal(b.t, 1, o.code, o.stderr)
		require.Regexp(b.t, message, o.result.Message)
		require.False(b.t, o.result.Retryable)
		require.Equal(b.t, 1, b.currentVersion())
		b.requireVersion(1, c.one, "without room")
	}

	b.enlarge(c.more)
	b.proxy.Inject()
	b.proxy.Forget()
	o = load()
	require.Zero(b.t, o.code, o.stderr)
	require.Equal(b.t, 2, b.currentVersion())
	b.requireVersion(2, c.two, "with more room")
	b.requireVersion(1, c.one, "with more room")
	left, err := os.ReadDir(filepath.Join(b.version(2), ".flexlvm/tmp"))
	require.NoError(b.t, err)
	require.Empty(b.t, left)
	if c.all {
		require.Zero(b.t, b.proxy.Sent(""), "all of it was there")
	}
}
