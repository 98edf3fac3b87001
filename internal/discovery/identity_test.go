package discovery

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/disk"
)

// A disk and its file system are both refused. Of a disk and its partition only the partition is,
// because the disk's tenant may have created it.
func TestFindOfOverlaps(t *testing.T) {
	device := Found{Path: "/d", Kind: Device, Number: 1, Disk: "naa.1", deviceID: "naa.1"}
	part := Found{Path: "/p", Kind: Device, Number: 2, Disk: "naa.1-part1", deviceID: "naa.1-part1"}
	on := Found{Path: "/f", Kind: Filesystem, Number: 1, Disk: "fs-u", Root: "/", deviceID: "naa.1"}
	onPart := Found{Path: "/g", Kind: Filesystem, Number: 2, Disk: "fs-v", Root: "/", deviceID: "naa.1-part1"}
	onOther := Found{Path: "/h", Kind: Filesystem, Number: 3, Disk: "fs-w", Root: "/", deviceID: "naa.1-part2"}
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

// Before anything is deleted, the UUID of the file system is read again from the device.
func TestSameFilesystem(t *testing.T) {
	p := newPlace(t)
	p.mount(p.make("whole"), "/")
	p.mounts = p.mounts[1:]
	f := p.find()["whole"]
	require.NoError(t, p.finder.checkSameFilesystem(t.Context(), f))
	p.uuid = "u-2"
	require.Equal(t, "fs-u-1", p.find()["whole"].Disk, "Find asks once in the life of a mount")
	require.ErrorContains(t, p.finder.checkSameFilesystem(t.Context(), f), "file system fs-u-2 is now in the place of fs-u-1")
}

// A link may lead to any of several disks with one ID, so none of them is a volume, and none is erased.
// Devices made of disks are not affected.
func TestDisksWithOneID(t *testing.T) {
	for name, c := range map[string]struct {
		id    string
		whole []disk.Disk
		says  string
	}{
		"two of its ID":          {"naa.1", []disk.Disk{{Path: "/dev/sda", ID: "naa.1"}, {Path: "/dev/sdb", ID: "naa.1"}}, "/dev/sda and /dev/sdb report the same ID, naa.1:"},
		"three of its disk's":    {"naa.1-part2", []disk.Disk{{Path: "/dev/sda", ID: "naa.1"}, {Path: "/dev/sdb", ID: "naa.1"}, {Path: "/dev/sdc", ID: "naa.1"}}, "/dev/sda and /dev/sdb and /dev/sdc report the same ID, naa.1:"},
		"one":                    {"naa.1", []disk.Disk{{Path: "/dev/sda", ID: "naa.1"}, {Path: "/dev/sdb", ID: "naa.12"}, {Path: "/dev/sdc"}, {Path: "/dev/sdd"}}, ""},
		"one of its disk's":      {"naa.1-part2", []disk.Disk{{Path: "/dev/sda", ID: "naa.1"}, {Path: "/dev/sdb", ID: "naa.1-part"}}, ""},
		"a loop device":          {"loop-/srv/a.img", []disk.Disk{{Path: "/dev/sda", ID: "naa.1"}, {Path: "/dev/sdb", ID: "naa.1"}}, ""},
		"multipathd's, of those": {"dm-mpath-3600", []disk.Disk{{Path: "/dev/sda", ID: "naa.1"}, {Path: "/dev/sdb", ID: "naa.1"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := host{
				Number: func(string) (uint64, error) { return 7, nil },
				Device: func(n uint64) (disk.Device, error) {
					return disk.Device{Path: "/dev/sda", Number: n, ID: c.id, Size: 1 << 30}, nil
				},
				Disks: func() ([]disk.Disk, error) { return c.whole, nil },
			}
			f := Found{Path: "/mnt/raw/a"}
			looked := (&finder{Host: h, listDisks: h.Disks}).inspectDevice(&f)
			require.Equal(t, c.id, f.Disk)
			for _, err := range []error{looked, h.checkSameDevice(f)} {
				if c.says == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, c.says)
				}
			}
			f.Start = 1 << 20
			require.ErrorContains(t, h.checkSameDevice(f), "begins at byte 0 of its disk, and began at byte 1048576")
			f.Disk = "naa.2"
			require.ErrorContains(t, h.checkSameDevice(f), "device "+c.id+" is now in the place of naa.2")
			h.Disks = func() ([]disk.Disk, error) { return nil, errors.New("no /sys") }
			require.ErrorContains(t, checkUniqueID(c.id, h.Disks), "no /sys")
		})
	}
}

// Each call of Find lists the disks once.
func TestDisksAreListedOnce(t *testing.T) {
	p := newPlace(t)
	listed := 0
	p.finder.Host.Disks = func() ([]disk.Disk, error) {
		listed++
		return p.whole, nil
	}
	p.find()
	one := Found{Path: "/mnt/raw/a"}
	require.NoError(t, p.finder.inspectDevice(&one))
	require.NoError(t, p.finder.inspectDevice(&one))
	require.Equal(t, 1, listed)
	p.whole = []disk.Disk{{Path: "/dev/sdx", ID: "naa.5000"}, {Path: "/dev/sdy", ID: "naa.5000"}}
	p.find()
	require.ErrorContains(t, p.finder.inspectDevice(&one), "/dev/sdx and /dev/sdy")
}

func TestFindOfLongRoots(t *testing.T) {
	p := newPlace(t)
	p.mount(p.make("a"), "/"+strings.Repeat("x", maxDiskID))
	found := p.find(func(c *Class) { c.Sharing = BindMounts })["a"]
	require.Contains(t, found.Problem, "is too long")
	require.Empty(t, found.Disk)
}

func TestEmptyOfManyFiles(t *testing.T) {
	top := t.TempDir()
	f := foundAt(t, top)
	require.NoError(t, checkEmpty(f, nil))
	require.NoError(t, os.Mkdir(filepath.Join(top, lostAndFound), 0o755))
	require.NoError(t, checkEmpty(f, nil))
	require.NoError(t, os.WriteFile(filepath.Join(top, "file"), nil, 0o600))
	require.ErrorContains(t, checkEmpty(f, nil), "perhaps more")
}
