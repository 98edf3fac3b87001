package mount

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/mountinfo"
)

// A Point is a mount of a file system or of a device node.
type Point struct {
	Path   string
	Type   string // of the file system
	Source string
	// Number is the number of the file system's device, as in stat's st_rdev; if the node of a
	// block device in /dev is mounted alone, the number of that device.
	Number uint64
	// Root is the directory of the file system that is mounted. Of a very long path, At, All and ByDevice
	// return only the beginning.
	Root string
	// ReadOnly: this mount is read-only, whatever the file system is.
	ReadOnly bool
}

// At returns the mounts at path, the topmost last; none if nothing is mounted or path does not
// exist.
func At(path string) ([]Point, error) {
	path = filepath.Clean(path)
	// The kernel's paths contain no links.
	if parent, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		path = filepath.Join(parent, filepath.Base(path))
	}
	return points(func(i *mountinfo.Info) bool { return i.Mountpoint == path })
}

// All returns every mount of this mount namespace. It accesses no other machine's file system.
func All() ([]Point, error) { return points(func(*mountinfo.Info) bool { return true }) }

// ByDevice returns every mount of this mount namespace, by device number.
func ByDevice() (map[uint64][]Point, error) {
	all, err := All()
	if err != nil {
		return nil, err
	}
	table := map[uint64][]Point{}
	for _, p := range all {
		table[p.Number] = append(table[p.Number], p)
	}
	return table, nil
}

func points(match func(*mountinfo.Info) bool) ([]Point, error) {
	infos, err := mountinfo.ReadSelf(match)
	if err != nil {
		return nil, fmt.Errorf("read mountinfo: %w", err)
	}
	var dev unix.Stat_t
	if err := unix.Stat("/dev", &dev); err != nil {
		return nil, fmt.Errorf("read the file system of /dev: %w", err)
	}
	found := make([]Point, 0, len(infos))
	for _, i := range infos {
		found = append(found, Point{Path: i.Mountpoint, Type: i.FSType, Source: i.Source, Number: numberOf(i, dev.Dev), Root: i.Root, ReadOnly: isReadOnly(i)})
	}
	return found, nil
}

// numberOf accesses the mount only if that is part of /dev, whose file system has the number dev:
// access to another file system may hang.
func numberOf(i *mountinfo.Info, dev uint64) uint64 {
	var st unix.Stat_t
	if isPartOfDev(i, dev) && unix.Lstat(i.Mountpoint, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK {
		return st.Rdev
	}
	return deviceOf(i)
}

// isPartOfDev reports whether a mount shows a file or directory of the host's /dev. The kernel has only one
// devtmpfs, also where another file system is at /dev. Any other tmpfs may belong to a tenant, who can create
// nodes in it for devices of others and have kubelet mount them (subPath).
func isPartOfDev(i *mountinfo.Info, dev uint64) bool {
	return i.Root != "/" && (i.FSType == "devtmpfs" || i.FSType == "tmpfs" && deviceOf(i) == dev)
}

func isReadOnly(i *mountinfo.Info) bool {
	return slices.Contains(strings.Split(i.Options, ","), "ro")
}

func deviceOf(i *mountinfo.Info) uint64 { return unix.Mkdev(uint32(i.Major), uint32(i.Minor)) }
