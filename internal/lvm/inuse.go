package lvm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrOpen: a process has the device open, perhaps only for a moment, as udev and LVM do when they
// scan disks.
var ErrOpen = errors.New("it is in use")

// CheckNoUsers fails if a process of this machine has the device open, if the device backs a loop
// device, or if this cannot be determined.
func CheckNoUsers(device string) error {
	p := prober{sys: "/sys", proc: "/proc", blockNumber: blockNumber}
	d, err := p.identify(device)
	if err != nil {
		return err
	}
	return p.checkUsers(d)
}

// checkUsers finds users of the device that O_EXCL does not detect, because they do not claim it: a
// process that has it open, such as QEMU or a database, and a loop device, such as the kubelet
// creates for every volume with volumeMode Block. Device-mapper and MD devices are holders, which
// checkKernel sees.
func (p prober) checkUsers(d candidate) error {
	numbers := []uint64{d.number}
	if disk, is, err := wholeDisk(d); err != nil {
		return unsure(d.path, "find the disk of the partition", err)
	} else if is {
		numbers = append(numbers, disk)
	}
	if err := p.checkLoops(d, numbers); err != nil {
		return err
	}
	return p.checkProcesses(d, numbers)
}

// wholeDisk returns the number of the disk that a partition is on; false if d is a disk.
func wholeDisk(d candidate) (number uint64, is bool, err error) {
	if _, err := os.Stat(filepath.Join(d.dir, "partition")); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return 0, false, nil
		}
		return 0, false, err
	}
	text, err := readLine(filepath.Join(filepath.Dir(d.dir), "dev"))
	if err != nil {
		return 0, false, err
	}
	var major, minor uint32
	if _, err := fmt.Sscanf(text, "%d:%d", &major, &minor); err != nil {
		return 0, false, fmt.Errorf("read its number %q: %w", text, err)
	}
	return unix.Mkdev(major, minor), true, nil
}

// checkLoops checks what backs each loop device.
func (p prober) checkLoops(d candidate, numbers []uint64) error {
	list, err := os.ReadDir(filepath.Join(p.sys, "block"))
	if err != nil {
		return unsure(d.path, "list loop devices", err)
	}
	for _, e := range list {
		loop := e.Name()
		if !strings.HasPrefix(loop, "loop") {
			continue
		}
		backing, err := readLine(filepath.Join(p.sys, "block", loop, "loop/backing_file"))
		if gone(err) || err == nil && backing == "" {
			continue // nothing backs it
		}
		uses := false
		if err == nil {
			uses, err = p.loopUses(backing, numbers)
		}
		if errors.Is(err, os.ErrNotExist) {
			return unsure(d.path, "check what "+loop+" is made of", fmt.Errorf("%w; if nobody uses %s, detach it with `losetup --detach /dev/%s`", err, loop, loop))
		}
		if err != nil {
			return unsure(d.path, "check what "+loop+" is made of", err)
		}
		if uses {
			return notBlank(d.path, "it is in use: %s is made of it", loop)
		}
	}
	return nil
}

// loopUses checks what backs a loop device in flexlvm's own mount namespace and in that of process
// 1, because the path is as seen by the process that attached the device. A path that exists in
// neither namespace is an error.
func (p prober) loopUses(backing string, numbers []uint64) (bool, error) {
	uses, err := p.leadsTo(backing, numbers)
	if uses || err != nil && !errors.Is(err, os.ErrNotExist) {
		return uses, err
	}
	uses, err1 := p.leadsTo(filepath.Join(p.proc, "1/root", backing), numbers)
	if err == nil && errors.Is(err1, os.ErrNotExist) {
		return false, nil
	}
	return uses, err1
}

// checkProcesses checks the open files of every process.
func (p prober) checkProcesses(d candidate, numbers []uint64) error {
	list, err := os.ReadDir(p.proc)
	if err != nil {
		return unsure(d.path, "list processes", err)
	}
	processes := 0
	for _, e := range list {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		processes++
		dir := filepath.Join(p.proc, e.Name())
		uses, err := p.processUses(dir, numbers)
		if err != nil {
			return unsure(d.path, "check what process "+e.Name()+" has open", err)
		}
		if uses {
			name, _ := readLine(filepath.Join(dir, "comm")) // for people to read
			return fmt.Errorf("device %s: %w: %w: process %s (%s) has it open", d.path, ErrNotBlank, ErrOpen, e.Name(), name)
		}
	}
	if processes == 0 {
		return unsure(d.path, "list processes", fmt.Errorf("%s shows none", p.proc))
	}
	return nil
}

// processUses checks the files that the threads of a process share. If there are none, the first
// thread may have ended before the others, so it checks each of these.
func (p prober) processUses(dir string, numbers []uint64) (bool, error) {
	open, uses, err := p.threadUses(dir, numbers)
	if open > 0 || uses || err != nil {
		return uses, err
	}
	threads, err := os.ReadDir(filepath.Join(dir, "task"))
	if err != nil && !ended(dir, err) {
		return false, err
	}
	for _, t := range threads {
		_, uses, err := p.threadUses(filepath.Join(dir, "task", t.Name()), numbers)
		if uses || err != nil {
			return uses, err
		}
	}
	return false, nil
}

// threadUses also returns how many files the thread has open.
func (p prober) threadUses(dir string, numbers []uint64) (open int, uses bool, err error) {
	files, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		if ended(dir, err) {
			return 0, false, nil
		}
		return 0, false, err
	}
	for _, f := range files {
		link := filepath.Join(dir, "fd", f.Name())
		uses, err := p.leadsTo(link, numbers)
		if uses {
			return len(files), true, nil
		}
		if err != nil && !ended(link, err) {
			return len(files), false, err
		}
	}
	return len(files), false, nil
}

// ended reports whether an error about a process, or about one of its open files, means that the
// process or file is gone. The kernel denies access to the files of a process that has just ended.
func ended(path string, err error) bool {
	if !gone(err) {
		_, err = os.Lstat(path)
	}
	return gone(err)
}

func gone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENODEV)
}

// leadsTo reports whether a path leads to a block device of one of these numbers.
func (p prober) leadsTo(path string, numbers []uint64) (bool, error) {
	number, is, err := p.blockNumber(path)
	if err != nil || !is {
		return false, err
	}
	return slices.Contains(numbers, number), nil
}

// blockNumber returns the number of the block device that a path leads to; false if it leads to
// something else. It contacts no server of a network file system, which may never answer: neither a
// file's type nor its device number ever changes.
func blockNumber(path string) (number uint64, is bool, err error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &st); err != nil {
		return 0, false, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	if st.Mask&unix.STATX_TYPE == 0 {
		return 0, false, fmt.Errorf("statx %s: the kernel does not tell what it is", path)
	}
	return unix.Mkdev(st.Rdev_major, st.Rdev_minor), st.Mode&unix.S_IFMT == unix.S_IFBLK, nil
}
