//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/test/vm/logwrites"
)

// diskName is the device-mapper name of the disk that LVM sees: during the recording the recorded disk, then the
// disk of a point.
const diskName = "disk"

const diskPath = "/dev/mapper/" + diskName

// setUpLVM limits LVM to that disk: the disks below it have the same content.
func setUpLVM() error {
	const conf = "/etc/lvm/lvmlocal.conf"
	b, err := os.ReadFile(conf)
	if err != nil {
		return err
	}
	filter := "devices {\n\tglobal_filter = [ \"a|^" + diskPath + "$|\", \"r|.*|\" ]\n"
	if strings.Contains(string(b), filter) {
		return nil // by an earlier run
	}
	text := strings.Replace(string(b), "devices {\n", filter, 1)
	if !strings.Contains(text, filter) {
		return fmt.Errorf("%s has no section devices; run this in a node without udev", conf)
	}
	// Modules, unless they are built into the kernel.
	for _, module := range []string{"dm-log-writes", "dm-snapshot"} {
		_, _ = exec.Command("modprobe", module).CombinedOutput()
	}
	return os.WriteFile(conf, []byte(text), 0o644)
}

// sh runs a line of shell, which must succeed, and returns its output.
func sh(format string, args ...any) (string, error) {
	line := fmt.Sprintf(format, args...)
	cmd := exec.Command("sh", "-c", line)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", line, err, strings.TrimSpace(string(out)))
	}
	return strings.TrimSpace(string(out)), nil
}

// dmsetup creates, marks and removes the disk that LVM sees.
func dmsetup(args ...string) error {
	cmd := exec.Command("dmsetup", args...)
	cmd.Env = append(os.Environ(), "DM_DISABLE_UDEV=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("dmsetup %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// sectors returns the size of a disk in device-mapper sectors.
func sectors(disk string) (int64, error) {
	f, err := os.Open(disk)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	end, err := f.Seek(0, io.SeekEnd)
	return end / 512, err
}

// startRecording creates the recorded disk. Like the disk that the log is replayed onto, it begins empty.
func startRecording() error {
	for _, disk := range []string{recordedDisk, replayDisk} {
		if _, err := sh("blkdiscard -f %s", disk); err != nil {
			return err
		}
	}
	n, err := sectors(recordedDisk)
	if err != nil {
		return err
	}
	return dmsetup("create", diskName, "--table", fmt.Sprintf("0 %d log-writes %s %s", n, recordedDisk, logDisk))
}

func mark(text string) error { return dmsetup("message", diskName, "0", "mark", text) }

// swallowFlushes makes the kernel believe that the disk has no cache.
func swallowFlushes() error {
	_, err := sh(`echo "write through" >/sys/block/$(dmsetup info -c --noheadings -o blkdevname %s)/queue/write_cache`, diskName)
	return err
}

// removeDisk removes the disk after deactivating the group on it.
func removeDisk() error {
	if _, err := sh("vgchange -q -an"); err != nil {
		return err
	}
	return dmsetup("remove", diskName)
}

// A replay is a disk onto which the log is replayed further and further, with a snapshot on top for one point's
// changes.
type replay struct {
	log  *logwrites.Log
	disk *device
	done int // entries replayed
}

func newReplay(l *logwrites.Log) (*replay, error) {
	f, err := os.OpenFile(replayDisk, os.O_RDWR, 0)
	return &replay{log: l, disk: &device{f}}, err
}

// to puts the disk into its state at a point. Changes to it go to the snapshot, which drop removes.
func (r *replay) to(p logwrites.Point) error {
	if err := r.log.Replay(r.disk, r.done, p.Base); err != nil {
		return err
	}
	r.done = p.Base
	if err := r.disk.Sync(); err != nil {
		return err
	}
	n, err := sectors(replayDisk)
	if err != nil {
		return err
	}
	err = dmsetup("create", diskName, "--table", fmt.Sprintf("0 %d snapshot %s %s N 128", n, replayDisk, changesDisk))
	if err != nil || !p.Torn {
		return err
	}
	f, err := os.OpenFile(diskPath, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(r.log.Tear(f, p, ofLVM), f.Sync(), f.Close())
}

func (r *replay) drop() error { return removeDisk() }

// ofLVM reports whether the offset is in LVM's own metadata. LVM writes a new text of it and then a header that
// points to the text, without a flush between the two (seen with 2.03.16). If a disk writes only the second, LVM
// can no longer read the group, and nothing above LVM can help.
func ofLVM(offset int64) bool { return offset < int64(metadataSize) }

const metadataSize = 16 * volume.MiB

// A device is a disk that accepts discards.
type device struct{ *os.File }

// Discard leaves zeros, as the disks of virtual nodes do.
func (d *device) Discard(offset, length int64) error {
	const blkZeroOut = 0x127f // BLKZEROOUT (linux/fs.h)
	if err := d.Sync(); err != nil {
		return err
	}
	span := [2]uint64{uint64(offset), uint64(length)}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, d.Fd(), blkZeroOut, uintptr(unsafe.Pointer(&span))); errno != 0 {
		return fmt.Errorf("discard %d bytes at byte %d: %w", length, offset, errno)
	}
	return nil
}

// lvs lists the logical volumes of the group, including those that LVM hides.
func lvs() ([]string, error) {
	out, err := sh("lvs --noheadings -a -o lv_name %s", group)
	return strings.Fields(out), err
}

// bounded returns a context for one call.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, callLimit)
}
