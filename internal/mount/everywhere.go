package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Proc is the host's procfs.
const Proc = "/proc"

// Everywhere returns the mounts of a device in the mount namespace of any thread below proc:
// containers keep copies of mounts that are gone from the host's namespace. It does not see a
// namespace without threads, nor open files of a mount that is in no mount tree.
func Everywhere(proc string, number uint64) ([]Point, error) {
	processes, err := os.ReadDir(proc)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []Point
	seen := map[view]bool{}
	for _, p := range processes {
		if _, err := strconv.Atoi(p.Name()); err != nil {
			continue
		}
		tasks := filepath.Join(proc, p.Name(), "task")
		threads, err := os.ReadDir(tasks)
		if err != nil && !ended(err) {
			return nil, fmt.Errorf("list the threads of process %s: %w", p.Name(), err)
		}
		for _, thread := range threads {
			points, err := seenBy(filepath.Join(tasks, thread.Name()), number, seen)
			if err != nil && !ended(err) {
				return nil, fmt.Errorf("read the mounts of process %s: %w", p.Name(), err)
			}
			found = append(found, points...)
		}
	}
	return found, nil
}

// A view determines which mounts a thread sees: its namespace, and its root in that. A chrooted
// thread does not see mounts outside its root.
type view struct {
	namespace        string
	major, minor     uint32
	mount, directory uint64
}

// seenBy returns the mounts of a device that a thread sees, unless another one with the same view
// was read.
func seenBy(thread string, number uint64, seen map[view]bool) ([]Point, error) {
	namespace, err := os.Readlink(filepath.Join(thread, "ns/mnt"))
	if err != nil {
		return nil, err
	}
	var root unix.Statx_t
	// The flags avoid requests to a file server that may not answer.
	err = unix.Statx(unix.AT_FDCWD, filepath.Join(thread, "root"), unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_INO|unix.STATX_MNT_ID, &root)
	if ended(err) {
		return nil, err
	}
	// Linux before 5.8 does not report the mount: then every thread's mounts are read.
	known := err == nil && root.Mask&unix.STATX_MNT_ID != 0
	v := view{namespace, root.Dev_major, root.Dev_minor, root.Mnt_id, root.Ino}
	if known && seen[v] {
		return nil, nil
	}
	points, readErr := pointsOf(filepath.Join(thread, "mountinfo"), number)
	if known && readErr == nil {
		seen[v] = true
	}
	return points, readErr
}

func pointsOf(file string, number uint64) ([]Point, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	lines, err := linesOf(f, number)
	if err != nil {
		return nil, err
	}
	var out []Point
	for _, line := range lines {
		p, err := parseLine(line, number)
		if err != nil {
			return nil, err
		}
		p.Root = strings.TrimSuffix(p.Root, "//deleted")
		out = append(out, p)
	}
	return out, nil
}

// ended reports whether an error means that a thread is gone, or a zombie, which has no mounts.
func ended(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL)
}
