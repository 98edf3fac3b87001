package lvm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/utils/exec"

	"github.com/flexlvm/flexlvm/internal/mountinfo"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// ErrNotBlank: the device holds something, or is in use.
var ErrNotBlank = errors.New("not blank")

// CheckBlank fails unless every device is an unused block device of at least minSize bytes without
// any signature. Whatever cannot be determined counts against the device: a probe that finds
// nothing proves little, so several are used and all must agree. A device that is merely open
// counts as unused, because here a person has named it, and udev opens devices all the time.
func CheckBlank(ctx context.Context, run exec.Interface, devices []string, minSize volume.Bytes) error {
	return prober{run: run, sys: "/sys", proc: "/proc"}.checkAll(ctx, devices, minSize)
}

// checkUnused is CheckBlank for a device that no person has named: it also rejects a device that a
// process has open, or that backs a loop device.
func checkUnused(ctx context.Context, run exec.Interface, device string, minSize volume.Bytes) error {
	return prober{run: run, sys: "/sys", proc: "/proc", users: true, blockNumber: blockNumber}.checkAll(ctx, []string{device}, minSize)
}

func (p prober) checkAll(ctx context.Context, devices []string, minSize volume.Bytes) error {
	seen := map[uint64]string{}
	for _, path := range devices {
		d, err := p.identify(path)
		if err != nil {
			return err
		}
		if other, twice := seen[d.number]; twice {
			return fmt.Errorf("device %s: is the same device as %s; name it once", path, other)
		}
		seen[d.number] = path
		if err := p.check(ctx, d, minSize); err != nil {
			return err
		}
	}
	return nil
}

// A prober checks devices through the kernel and the host's programs.
type prober struct {
	run       exec.Interface
	sys, proc string // where these file systems are mounted
	users     bool   // also check who has the device open
	// blockNumber is the function of that name, except in tests.
	blockNumber func(path string) (number uint64, is bool, err error)
}

// A candidate is a block device that may be passed to LVM.
type candidate struct {
	path   string // as the caller wrote it
	number uint64
	dir    string // in sysfs, with links resolved
}

func notBlank(path, reason string, args ...any) error {
	return fmt.Errorf("device %s: %w: %s", path, ErrNotBlank, fmt.Sprintf(reason, args...))
}

func unsure(path, doing string, err error) error {
	return fmt.Errorf("device %s: cannot tell whether it is blank, so it is not touched: %s: %w", path, doing, err)
}

func (p prober) identify(path string) (candidate, error) {
	if !filepath.IsAbs(path) {
		return candidate{}, fmt.Errorf("device %s: give the whole path, as /dev/nvme1n1", path)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return candidate{}, fmt.Errorf("device %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return candidate{}, fmt.Errorf("device %s: is not a block device", path)
	}
	dir, err := filepath.EvalSymlinks(fmt.Sprintf("%s/dev/block/%d:%d", p.sys, unix.Major(st.Rdev), unix.Minor(st.Rdev)))
	if err != nil {
		return candidate{}, unsure(path, "find it in sysfs", err)
	}
	return candidate{path: path, number: st.Rdev, dir: dir}, nil
}

func (p prober) check(ctx context.Context, d candidate, minSize volume.Bytes) error {
	if err := p.checkKernel(d); err != nil {
		return err
	}
	if err := p.checkMounts(d); err != nil {
		return err
	}
	if err := p.checkSwaps(d); err != nil {
		return err
	}
	if err := checkOpen(d, minSize); err != nil {
		return err
	}
	if err := p.checkWipefs(ctx, d); err != nil {
		return err
	}
	if err := p.checkBlkid(ctx, d); err != nil {
		return err
	}
	if !p.users {
		return nil
	}
	return p.checkUsers(d) // last: it checks every process, and CheckBlankForGroup may repeat it
}

// checkKernel rejects a device that, according to sysfs, is read-only, has partitions, or is part
// of another device. A partition must not be in use through its disk either.
func (p prober) checkKernel(d candidate) error {
	ro, err := readLine(filepath.Join(d.dir, "ro"))
	if err != nil {
		return unsure(d.path, "read sysfs", err)
	}
	if ro != "0" {
		return notBlank(d.path, "it is read-only")
	}
	dirs := []string{d.dir}
	switch _, err := os.Stat(filepath.Join(d.dir, "partition")); {
	case err == nil:
		dirs = append(dirs, filepath.Dir(d.dir))
	case !errors.Is(err, os.ErrNotExist):
		return unsure(d.path, "read sysfs", err)
	default:
		if err := checkPartitions(d); err != nil {
			return err
		}
	}
	for _, dir := range dirs {
		for _, kind := range []string{"holders", "slaves"} {
			names, err := entries(filepath.Join(dir, kind))
			if err != nil {
				return unsure(d.path, "read sysfs", err)
			}
			if len(names) > 0 {
				return notBlank(d.path, "%s (%s in %s); make the group by hand with vgcreate if you are sure", relation(kind), strings.Join(names, ", "), dir)
			}
		}
	}
	return nil
}

func relation(kind string) string {
	if kind == "holders" {
		return "another device is made of it"
	}
	return "it is made of other devices"
}

func checkPartitions(d candidate) error {
	names, err := entries(d.dir)
	if err != nil {
		return unsure(d.path, "read sysfs", err)
	}
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(d.dir, name, "partition")); err == nil {
			return notBlank(d.path, "it has a partition, %s", name)
		}
	}
	return nil
}

// entries returns the names in a directory; a partition has no directory "slaves".
func entries(dir string) ([]string, error) {
	list, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) && filepath.Base(dir) == "slaves" {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(list))
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names, nil
}

// checkMounts checks flexlvm's own mount namespace and that of process 1.
func (p prober) checkMounts(d candidate) error {
	for _, who := range []string{"self", "1"} {
		f, err := os.Open(filepath.Join(p.proc, who, "mountinfo"))
		if err != nil {
			return unsure(d.path, "read the list of mounts", err)
		}
		of, err := mountinfo.Read(f, func(i *mountinfo.Info) bool { return unix.Mkdev(uint32(i.Major), uint32(i.Minor)) == d.number })
		_ = f.Close()
		if err != nil {
			return unsure(d.path, "read the list of mounts", err)
		}
		if len(of) > 0 {
			return notBlank(d.path, "it is mounted on %s", of[0].Mountpoint)
		}
	}
	return nil
}

func (p prober) checkSwaps(d candidate) error {
	text, err := os.ReadFile(filepath.Join(p.proc, "swaps"))
	if errors.Is(err, os.ErrNotExist) {
		return nil // a kernel without swap
	}
	if err != nil {
		return unsure(d.path, "read the list of swap devices", err)
	}
	for _, line := range strings.Split(string(text), "\n") {
		f := strings.Fields(line)
		if len(f) < 2 || f[1] != "partition" {
			continue
		}
		var st unix.Stat_t
		if err := unix.Stat(f[0], &st); err != nil {
			return unsure(d.path, "check swap device "+f[0], err)
		}
		if st.Rdev == d.number {
			return notBlank(d.path, "it is in use as swap")
		}
	}
	return nil
}

// checkOpen opens the device exclusively, which fails if another user has claimed it, and reads its
// ends, where signatures are: a device that cannot be read looks empty to a probe.
func checkOpen(d candidate, minSize volume.Bytes) error {
	f, err := os.OpenFile(d.path, os.O_RDONLY|unix.O_EXCL, 0)
	if errors.Is(err, unix.EBUSY) {
		return notBlank(d.path, "it is in use (the kernel lets nobody else open it)")
	}
	if err != nil {
		return unsure(d.path, "open it", err)
	}
	defer func() { _ = f.Close() }()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return unsure(d.path, "find its size", err)
	}
	size := volume.Bytes(end)
	if size < minSize {
		return fmt.Errorf("device %s: has %s, and %s is the least that is of use", d.path, size, minSize)
	}
	buf := make([]byte, volume.MiB)
	for _, at := range []int64{0, int64(size - volume.MiB)} {
		if _, err := f.ReadAt(buf, at); err != nil {
			return unsure(d.path, "read it", err)
		}
	}
	return nil
}

func (p prober) checkWipefs(ctx context.Context, d candidate) error {
	found, err := Signatures(ctx, p.run, d.path)
	if err != nil {
		return unsure(d.path, "probe it", err)
	}
	if len(found) > 0 {
		all := strings.Join(found, "; ")
		return notBlank(d.path, "it carries a signature (%s); if what it holds is not wanted, %s", all, ClearAdvice(d.path, all))
	}
	return nil
}

// blkidNothing is blkid's exit code for "no signature" (man 8 blkid).
const blkidNothing = 2

func (p prober) checkBlkid(ctx context.Context, d candidate) error {
	out, err := p.run.CommandContext(ctx, "blkid", "-p", "-o", "export", "--", d.path).Output()
	var exit exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitStatus() == blkidNothing:
		return nil
	case err != nil:
		return unsure(d.path, "look for signatures", err)
	}
	found := strings.Join(strings.Fields(string(out)), " ")
	if onlyItsPlace(string(out)) {
		return nil
	}
	return notBlank(d.path, "it holds something (%s); if that is not wanted, %s", found, ClearAdvice(d.path, found))
}

// onlyItsPlace reports whether blkid knows only where a partition is: blkid repeats the partition's
// entry in the table of the whole disk (PART_ENTRY_…), which is not content of the partition.
func onlyItsPlace(out string) bool {
	place := false
	for line := range strings.Lines(out) {
		switch {
		case strings.HasPrefix(line, "PART_ENTRY_"):
			place = true
		case strings.HasPrefix(line, "DEVNAME="), strings.TrimSpace(line) == "":
		default:
			return false
		}
	}
	return place
}
