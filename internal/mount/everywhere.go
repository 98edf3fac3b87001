package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Proc is where the host's processes are.
const Proc = "/proc"

// Everywhere returns what is mounted of a device in the mount namespace of any process below
// proc: containers keep copies of mounts that are gone from the host's. A namespace without a
// process, and files that are open of a mount that is in no tree, it does not see.
func Everywhere(proc string, number uint64) ([]Point, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []Point
	seen := map[string]bool{}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		namespace, err := os.Readlink(filepath.Join(proc, e.Name(), "ns/mnt"))
		if err == nil && seen[namespace] {
			continue
		}
		var points []Point
		if err == nil {
			points, err = pointsOf(filepath.Join(proc, e.Name(), "mountinfo"), number)
		}
		if ended(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the mounts of process %s: %w", e.Name(), err)
		}
		seen[namespace] = true
		found = append(found, points...)
	}
	return found, nil
}

func pointsOf(file string, number uint64) ([]Point, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	infos, err := mountinfo.GetMountsFromReader(f, func(i *mountinfo.Info) (skip, stop bool) { return deviceOf(i) != number, false })
	if err != nil {
		return nil, err
	}
	var out []Point
	for _, i := range infos {
		out = append(out, Point{Path: i.Mountpoint, Type: i.FSType, Source: i.Source, Number: number, Root: strings.TrimSuffix(i.Root, "//deleted"), ReadOnly: isReadOnly(i)})
	}
	return out, nil
}

// ended reports whether a process was gone when it was looked at, or a zombie, which has no
// mounts any more.
func ended(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL)
}
