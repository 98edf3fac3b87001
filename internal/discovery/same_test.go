package discovery

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A disk and its file system, and a disk and its partition, are refused, but for the disk
// whose tenant may have made the partition.
func TestFindOfOverlaps(t *testing.T) {
	device := Found{Path: "/d", Kind: Device, Number: 1, Disk: "naa.1", device: "naa.1"}
	part := Found{Path: "/p", Kind: Device, Number: 2, Disk: "naa.1-part1", device: "naa.1-part1"}
	on := Found{Path: "/f", Kind: Filesystem, Number: 1, Disk: "fs-u", Root: "/", device: "naa.1"}
	onPart := Found{Path: "/g", Kind: Filesystem, Number: 2, Disk: "fs-v", Root: "/", device: "naa.1-part1"}
	onOther := Found{Path: "/h", Kind: Filesystem, Number: 3, Disk: "fs-w", Root: "/", device: "naa.1-part2"}
	for name, c := range map[string]struct{ all, refused []Found }{
		"a disk and its file system":           {[]Found{device, on}, []Found{device, on}},
		"a disk and its partition":             {[]Found{device, part}, []Found{part}},
		"a disk and a partition's file system": {[]Found{device, onPart}, []Found{onPart}},
		"two partitions":                       {[]Found{part, onOther}, nil},
		"two file systems":                     {[]Found{onPart, onOther}, nil},
	} {
		all := append([]Found(nil), c.all...)
		refuseShared(all)
		var refused []string
		for _, f := range all {
			if f.Problem != "" {
				refused = append(refused, f.Path)
			}
		}
		var want []string
		for _, f := range c.refused {
			want = append(want, f.Path)
		}
		require.Equal(t, want, refused, name)
	}
}

// Before anything is deleted the device itself is asked which file system it has.
func TestSameFilesystem(t *testing.T) {
	p := newPlace(t)
	p.mount(p.make("whole"), "/")
	p.mounts = p.mounts[1:]
	f := p.find()["whole"]
	require.NoError(t, p.finder.sameFilesystem(t.Context(), f))
	p.uuid = "u-2"
	require.Equal(t, "fs-u-1", p.find()["whole"].Disk, "Find asks once in the life of a mount")
	require.ErrorContains(t, p.finder.sameFilesystem(t.Context(), f), "another file system (fs-u-2) is there than was found (fs-u-1)")
}

func TestFindOfLongRoots(t *testing.T) {
	p := newPlace(t)
	p.mount(p.make("a"), "/"+strings.Repeat("x", longestDisk))
	found := p.find(func(c *Class) { c.Sharing = BindMounts })["a"]
	require.Contains(t, found.Problem, "is too long")
	require.Empty(t, found.Disk)
}

func TestEmptyOfManyFiles(t *testing.T) {
	top := t.TempDir()
	f := foundAt(t, top)
	require.NoError(t, Empty(f))
	require.NoError(t, os.Mkdir(filepath.Join(top, lostAndFound), 0o755))
	require.NoError(t, Empty(f))
	require.NoError(t, os.WriteFile(filepath.Join(top, "file"), nil, 0o600))
	require.ErrorContains(t, Empty(f), "perhaps more")
}
