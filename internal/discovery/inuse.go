package discovery

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/utils/exec"

	"github.com/flexlvm/flexlvm/internal/disk"
	"github.com/flexlvm/flexlvm/internal/diskid"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/mountinfo"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// checkUnmounted fails while any part of a file system is mounted besides where it was found, or something
// is mounted in it: a pod may still use it, or a person examine it. A device must not be mounted at
// all.
func checkUnmounted(f Found, mounts []*mountinfo.Info) error {
	own := 0
	for _, m := range mounts {
		if f.Kind != Device && m.Mountpoint != f.Path && diskid.Within(m.Mountpoint, f.Path) {
			return fmt.Errorf("something is mounted below it, at %s; unmount that", m.Mountpoint)
		}
		if unix.Mkdev(uint32(m.Major), uint32(m.Minor)) != f.Number {
			continue
		}
		switch {
		case f.Kind == Device:
			return fmt.Errorf("it is mounted on %s; unmount that", m.Mountpoint)
		case m.Mountpoint == f.Path && m.Root == f.Root:
			own++
		case diskid.Within(m.Root, f.Root):
			return fmt.Errorf("it is mounted on %s as well; unmount that", m.Mountpoint)
		}
	}
	want := 0
	if f.Kind == Filesystem || f.Mounted {
		want = 1
	}
	if f.Kind != Device && own != want {
		return fmt.Errorf("it is mounted %d times on %s, but was mounted %d times when it was found", own, f.Path, want)
	}
	return nil
}

// kernelHost queries the machine without running a program.
var kernelHost = host{
	Mounts: func() ([]*mountinfo.Info, error) { return mountinfo.ReadSelf(nil) },
	Device: disk.OnHost().Device,
	Number: disk.NumberOf,
	Disks:  disk.OnHost().List,
}

// newHost queries the machine, also with the host's programs.
func newHost(run exec.Interface) host {
	h := kernelHost
	h.UUID = func(ctx context.Context, device string) (string, error) {
		out, err := run.CommandContext(ctx, "blkid", "-p", "-o", "value", "-s", "UUID", "--", device).Output()
		if err != nil {
			return "", fmt.Errorf("ask for the UUID of the file system on %s: %w", device, err)
		}
		return strings.TrimSpace(string(out)), nil
	}
	return h
}

// memberSignatures lists the signatures of devices that are part of something else, such as a volume group or a
// RAID, even if that is not active now.
var memberSignatures = []string{"LVM2_member", "linux_raid_member", "isw_raid_member", "ddf_raid_member", "swap", "zfs_member", "bcache", "mpath_member", "drbd"}

// partSignatures lists further signatures of devices whose data is used under the name of another device, which may
// not be open yet after a boot, or by a program that mounts nothing.
var partSignatures = []string{
	"crypto_LUKS", "BitLocker", "DM_integrity", "DM_verity_hash", "DM_snapshot_cow", "stratis", "vdo",
	"ceph_bluestore", "oracleasm", "swsuspend", "xfs_external_log", "jbd",
}

// checkNotFlexlvm fails if a device is one of flexlvm's volumes, or if this cannot be determined.
func checkNotFlexlvm(ctx context.Context, run exec.Interface, number uint64) error {
	d, err := disk.OnHost().Device(number)
	if err != nil {
		return err
	}
	return checkDeviceNotFlexlvm(ctx, run, d)
}

func checkDeviceNotFlexlvm(ctx context.Context, run exec.Interface, d disk.Device) error {
	if strings.HasPrefix(d.Mapping, "flexlvm-") {
		return errIsFlexlvm
	}
	if !strings.HasPrefix(d.ID, "dm-LVM-") {
		return nil
	}
	// Query by name: LVM takes a path such as /dev/dm-3 for the name of a volume group.
	group, name, ok := volume.SplitDeviceName(d.Mapping)
	if !ok {
		return fmt.Errorf("look up the tags of logical volume %s: its mapping %q does not have the name of one", d.Path, d.Mapping)
	}
	tags, err := run.CommandContext(ctx, "lvs", "--noheadings", "--readonly", "-o", "lv_tags", "--", string(group)+"/"+string(name)).Output()
	if err != nil {
		return fmt.Errorf("look up the tags of logical volume %s/%s: %w", group, name, err)
	}
	if strings.Contains(string(tags), "flexlvm") {
		return errIsFlexlvm
	}
	return nil
}

var errIsFlexlvm = errors.New("it is a volume of flexlvm, or is on one; unmount it, or remove the link")

// checkOfferable fails if f is one of flexlvm's volumes, or a device that is in use: as part of another
// device, according to its signatures, or because it holds data that the kubelet would format. e is
// the record of it. It returns what the file system on a device is called.
func checkOfferable(ctx context.Context, run exec.Interface, f Found, c Class, e Entry) (filesystem string, err error) {
	if err := checkNotFlexlvm(ctx, run, f.Number); err != nil || f.Kind != Device {
		return "", err
	}
	d, err := disk.OnHost().Device(f.Number)
	if err != nil {
		return "", err
	}
	switch {
	case len(d.Holders) > 0:
		return "", fmt.Errorf("it is part of %s", strings.Join(d.Holders, " and "))
	case d.Partitions:
		return "", errors.New("it has partitions; put links to the partitions here instead")
	}
	// Opened for reading only: closing a writable descriptor makes udev probe the device each time.
	dev, _, err := openDevice(f, os.O_RDONLY)
	if err != nil {
		return "", err
	}
	if err := dev.Close(); err != nil {
		return "", err
	}
	if err := checkSignatures(ctx, run, d.Path, isPart); err != nil {
		return "", err
	}
	is, err := contentOf(ctx, run, d.Path)
	if err != nil {
		return "", err
	}
	return is.filesystem(), checkKubeletFormat(d.Path, is, c, e)
}

// checkSignatures fails if refused returns true for one of a device's signatures. Tenants can write all of them.
func checkSignatures(ctx context.Context, run exec.Interface, device string, refused func(signature string) bool) error {
	found, err := lvm.Signatures(ctx, run, device)
	if err != nil {
		return err
	}
	for _, line := range found {
		if refused(line) {
			return fmt.Errorf("it has a signature (%s); if nobody needs that data, %s", kindOf(line), lvm.ClearAdvice(device, line))
		}
	}
	return nil
}

// kindOf returns the kind of a signature, which is in the last column.
func kindOf(signature string) string { return signature[strings.LastIndex(signature, ",")+1:] }

// isMember reports whether a device with this signature is part of a group of devices.
func isMember(signature string) bool {
	return slices.ContainsFunc(memberSignatures, func(kind string) bool { return strings.Contains(kindOf(signature), kind) })
}

// isPart reports whether the data of a device with this signature belongs to another device or program. A disk is not
// offered then, but cleaned: tenants encrypt disks, too.
func isPart(signature string) bool {
	kind := kindOf(signature)
	return isMember(signature) || strings.HasSuffix(kind, "_member") || slices.Contains(partSignatures, kind)
}
