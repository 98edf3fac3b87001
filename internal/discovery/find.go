package discovery

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/disk"
	"github.com/flexlvm/flexlvm/internal/diskid"
	"github.com/flexlvm/flexlvm/internal/mountinfo"
)

// A Kind is what is at a path.
type Kind string

// The kinds.
const (
	Filesystem Kind = "Filesystem" // a whole file system, mounted there
	Directory  Kind = "Directory"  // part of a file system that others share
	Device     Kind = "Device"     // a block device, or a link to one
)

// Sharing is which directories that share a file system are accepted.
type Sharing int

// Each includes those before.
const (
	NoDirectories  Sharing = iota
	BindMounts             // directories that are mounted there
	AllDirectories         // all other directories, too
)

// maxDiskID is the maximum length of a file system's Found.Disk, which is stored in the NodeStorage and in an
// annotation.
const maxDiskID = 300

// A Class is where to search, and for what.
type Class struct {
	Name      string
	Directory string
	Pattern   string // of names, as in path.Match; commas outside [] separate several patterns; empty: all
	Block     bool   // devices only
	Sharing   Sharing
	Files     bool // delete the files of a released file system; false: keep them
	Device    Erasure
}

// A Found is what was found at one path.
type Found struct {
	Class string
	Path  string // quoted, and with a Problem, if it is not UTF-8
	Kind  Kind
	Size  int64  // bytes
	Disk  string // identifies it among all others
	// Start and PartitionSize are where on its disk the partition is that it is, or that its file system is on, in bytes; 0:
	// none. A file system is smaller than its partition.
	Start, PartitionSize int64
	// Aliases are IDs under which its data may be found elsewhere: of the devices that it is on, down to the
	// disks.
	Aliases []string
	// AliasesUnknown is why Aliases may be incomplete.
	AliasesUnknown error
	// Problem is why it cannot become a volume; empty if it can.
	Problem string

	// Number is the number of the device, or of the file system's device.
	Number uint64
	// Root is the directory of the file system that is mounted; / for the whole.
	Root string
	// Mounted reports whether a file system, or a directory of one, is mounted at the path.
	Mounted bool
	// Mount and Inode distinguish the topmost directory from another one that replaces it.
	Mount, Inode uint64

	deviceID string // ID of the device that it is, or is on; empty if that has none
}

// setPartition records where on its disk a partition is.
func (f *Found) setPartition(d disk.Device) {
	if d.Start != 0 {
		f.Start, f.PartitionSize = int64(d.Start), int64(d.Size)
	}
}

// Names returns what the disk or file system is called.
func (f *Found) Names() diskid.Names { return diskid.Names{ID: f.Disk, Aliases: f.Aliases} }

// host is what a finder needs from the machine.
type host struct {
	Mounts func() ([]*mountinfo.Info, error)
	Device func(number uint64) (disk.Device, error)
	// UUID returns the UUID of the file system on a device.
	UUID func(ctx context.Context, device string) (string, error)
	// Number returns the number of the block device that a path leads to.
	Number func(path string) (uint64, error)
	// Disks returns the whole disks, without devices built on others, such as loop devices.
	Disks func() ([]disk.Disk, error)
}

// A finder searches for volumes.
type finder struct {
	Host      host
	uuids     map[string]string           // by device and mount, so that a disk is queried once
	listDisks func() ([]disk.Disk, error) // Host.Disks, called once in a call of Find
}

// Find returns what is in the directories of the classes, in the order of the paths, including what
// is refused, with the reason. unseen holds why a class, by its name, could not be scanned; Find
// returns nothing of such a class.
func (f *finder) Find(ctx context.Context, classes []Class) (all []Found, unseen map[string]error, err error) {
	mounts, err := f.Host.Mounts()
	if err != nil {
		return nil, nil, fmt.Errorf("discover volumes: read the mounts: %w", err)
	}
	cachedUUIDs := f.uuids
	f.uuids, unseen = map[string]string{}, map[string]error{}
	f.listDisks = sync.OnceValues(f.Host.Disks)
	for _, c := range classes {
		entries, err := entriesOf(c, mounts)
		if err != nil {
			unseen[c.Name] = err
			continue
		}
		for _, name := range entries {
			one := Found{Class: c.Name, Path: filepath.Join(c.Directory, name)}
			if !utf8.ValidString(name) {
				one = refuseNonUTF8(one)
			} else if err := f.inspect(ctx, &one, c, mounts, cachedUUIDs); err != nil {
				one.Problem = err.Error()
			}
			all = append(all, one)
		}
	}
	refuseShared(all)
	slices.SortFunc(all, func(a, b Found) int { return strings.Compare(a.Path, b.Path) })
	return all, unseen, nil
}

// reservedDirectories are directories that no class may use, nor any directory above or below them: their
// content belongs to the kubelet, to flexlvm or to the kernel.
var reservedDirectories = []string{"/var/lib/kubelet", "/var/lib/flexlvm", "/proc", "/sys", "/run", "/dev/mapper"}

// entriesOf lists the names in a class's directory that match its pattern; none if the directory
// does not exist.
func entriesOf(c Class, mounts []*mountinfo.Info) ([]string, error) {
	for _, s := range reservedDirectories {
		if diskid.Within(c.Directory, s) || diskid.Within(s, c.Directory) {
			return nil, fmt.Errorf("discover volumes of StorageClass %s: directory %s is, contains or lies in %s, which must not hold volumes; give the class a directory of its own, such as /mnt/disks", c.Name, c.Directory, s)
		}
	}
	resolved, err := resolve(mounts, c.Directory)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("discover volumes of StorageClass %s: %w", c.Name, err)
	}
	if resolved != c.Directory {
		return nil, fmt.Errorf("discover volumes of StorageClass %s: directory %s is a link to %s; name that directory", c.Name, c.Directory, resolved)
	}
	list, err := os.ReadDir(c.Directory)
	if err != nil {
		return nil, fmt.Errorf("discover volumes of StorageClass %s: %w", c.Name, err)
	}
	var out []string
	for _, e := range list {
		matches, err := c.Matches(e.Name())
		if err != nil {
			return nil, fmt.Errorf("discover volumes of StorageClass %s: namePattern %q: %w", c.Name, c.Pattern, err)
		}
		if matches {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// refuseNonUTF8 refuses a path that is not UTF-8, because the API server would take two such paths for
// the same. It shows the path in quotes, which no other entry has: other paths begin with a slash.
func refuseNonUTF8(one Found) Found {
	return Found{Class: one.Class, Path: strconv.Quote(one.Path), Problem: "its name is not UTF-8; rename it"}
}

// inspect determines what is at a path; its error is why that cannot become a volume.
func (f *finder) inspect(ctx context.Context, one *Found, c Class, mounts []*mountinfo.Info, cachedUUIDs map[string]string) error {
	// A path on a server that does not answer would block every call that touches it.
	if at, _ := mountAt(mounts, one.Path); at != nil && remote(at.FSType) {
		return fmt.Errorf("a file system of type %s is not on a disk of this node", at.FSType)
	}
	info, err := os.Lstat(one.Path)
	if err != nil {
		return err
	}
	target := info
	if info.Mode()&fs.ModeSymlink != 0 {
		if target, err = statLinked(one.Path, mounts); err != nil {
			return err
		}
		if target.Mode()&fs.ModeDevice == 0 || target.Mode()&fs.ModeCharDevice != 0 {
			return errors.New("it is a link, but not to a block device; mount the file system here instead")
		}
	}
	switch {
	case target.Mode()&fs.ModeDevice != 0 && target.Mode()&fs.ModeCharDevice == 0:
		return f.inspectDevice(one)
	case !target.IsDir():
		return errors.New("it is neither a directory nor a block device")
	case c.Block:
		one.Kind = Directory
		return errors.New("volumeMode is Block, but it is not a block device; put a link to a device in /dev/disk/by-id here")
	}
	return f.inspectDirectory(ctx, one, c, mounts, cachedUUIDs)
}

// statLinked returns the file information of a link's target. It does not follow links onto file servers.
func statLinked(link string, mounts []*mountinfo.Info) (fs.FileInfo, error) {
	target, err := resolve(mounts, link)
	if far := (remoteError{}); errors.As(err, &far) {
		return nil, fmt.Errorf("it is a link, and %w", far)
	}
	if err != nil {
		return nil, fmt.Errorf("it is a link whose target does not exist: %w", err)
	}
	return os.Lstat(target)
}

func (f *finder) inspectDevice(one *Found) error {
	one.Kind = Device
	number, err := f.Host.Number(one.Path)
	if err != nil {
		return err
	}
	d, err := f.Host.Device(number)
	if err != nil {
		return err
	}
	one.Number, one.Size, one.Disk, one.deviceID = number, int64(d.Size), d.ID, d.ID
	one.setPartition(d)
	one.Aliases, one.AliasesUnknown = aliasesOf(d.Under), d.UnderUnknown
	switch {
	case d.ID == "":
		return fmt.Errorf("%s cannot be distinguished from other disks: it has neither a WWN nor a serial number", d.Path)
	case d.ReadOnly:
		return fmt.Errorf("%s is read-only", d.Path)
	case d.Size == 0:
		return fmt.Errorf("%s has no size", d.Path)
	}
	return checkUniqueID(d.ID, f.listDisks)
}

func (f *finder) inspectDirectory(ctx context.Context, one *Found, c Class, mounts []*mountinfo.Info, cachedUUIDs map[string]string) error {
	at, count := mountAt(mounts, one.Path)
	one.Kind = Filesystem
	if count == 0 {
		one.Kind = Directory
		if c.Sharing < AllDirectories {
			return errors.New("nothing is mounted here: it is a plain directory; mount a file system, or give the class directories: All")
		}
		if at = mountOf(mounts, one.Path); at == nil {
			return errors.New("the mount that it is on cannot be found")
		}
	}
	if count > 1 {
		return fmt.Errorf("%d file systems are mounted here on top of each other; unmount all but one", count)
	}
	one.Mounted = count == 1
	rel := strings.TrimPrefix(strings.TrimPrefix(one.Path, at.Mountpoint), "/")
	one.Root = path.Join(at.Root, rel)
	if one.Root != "/" {
		if one.Kind = Directory; c.Sharing < BindMounts {
			return fmt.Errorf("it is a directory of a file system that is used elsewhere, too (%s); give the class directories: BindMounts", one.Root)
		}
	}
	if slices.Contains(strings.Split(at.Options, ","), "ro") || slices.Contains(strings.Split(at.SuperOptions, ","), "ro") {
		return errors.New("it is mounted read-only")
	}
	one.Number = unix.Mkdev(uint32(at.Major), uint32(at.Minor))
	var st unix.Stat_t
	if err := unix.Stat(one.Path, &st); err != nil {
		return err
	}
	if st.Dev != one.Number {
		return fmt.Errorf("a file system of type %s cannot be distinguished from others by its device", at.FSType)
	}
	is, err := dirIDOf(unix.AT_FDCWD, one.Path)
	if err != nil {
		return err
	}
	one.Mount, one.Inode = is.mount, is.inode
	if err := f.identify(ctx, one, at, cachedUUIDs); err != nil {
		return err
	}
	var size unix.Statfs_t
	if err := unix.Statfs(one.Path, &size); err != nil {
		return err
	}
	one.Size = int64(size.Blocks) * size.Frsize
	return nil
}

// identify determines the UUID of the file system, for which the device is queried once in the
// life of a mount. Machine.Clean queries it again.
func (f *finder) identify(ctx context.Context, one *Found, at *mountinfo.Info, cachedUUIDs map[string]string) error {
	d, err := f.Host.Device(one.Number)
	if err != nil {
		return fmt.Errorf("a file system of type %s is not on a disk of this node: %w", at.FSType, err)
	}
	key := fmt.Sprintf("%d %d %d %s", one.Number, at.ID, one.Mount, d.ID)
	uuid := cachedUUIDs[key]
	if uuid == "" {
		if uuid, err = f.Host.UUID(ctx, d.Path); err != nil {
			return err
		}
		if uuid == "" {
			return fmt.Errorf("the file system on %s has no UUID, so it cannot be distinguished from others", d.Path)
		}
	}
	f.uuids[key] = uuid
	one.deviceID = d.ID
	name := diskid.OfFilesystem(uuid, one.Root)
	if len(name) > maxDiskID {
		return fmt.Errorf("the path %s in its file system is too long: with the UUID it has %d bytes, and at most %d are possible; move it up", one.Root, len(name), maxDiskID)
	}
	one.Disk = name
	one.setPartition(d)
	one.Aliases, one.AliasesUnknown = aliasesOf(append([]string{d.ID}, d.Under...)), d.UnderUnknown
	return nil
}

// remote reports whether a kind of file system may depend on a server or a process.
func remote(kind string) bool {
	kind, _, _ = strings.Cut(kind, ".")
	return slices.Contains([]string{"nfs", "nfs4", "cifs", "smb3", "ceph", "afs", "9p", "fuse", "autofs"}, kind)
}

// mountAt returns the mount on a path, and how many there are.
func mountAt(all []*mountinfo.Info, path string) (at *mountinfo.Info, count int) {
	for _, m := range all {
		if m.Mountpoint == path {
			at = m
			count++
		}
	}
	return at, count
}

// mountOf returns the mount that a path is on.
func mountOf(all []*mountinfo.Info, path string) (on *mountinfo.Info) {
	for _, m := range all {
		if diskid.Within(path, m.Mountpoint) && (on == nil || len(m.Mountpoint) >= len(on.Mountpoint)) {
			on = m
		}
	}
	return on
}

// refuseShared refuses everything to which two paths lead. Of a disk and a partition on it, it
// refuses the partition: a tenant who has the disk may have created it.
func refuseShared(all []Found) {
	for i := range all {
		for j := range all {
			a, b := &all[i], &all[j]
			if i == j || a.Disk == "" || b.Disk == "" {
				continue
			}
			switch {
			case a.Problem != "":
			case diskid.PartitionOf(a.deviceID, b.deviceID) && (a.Kind == Device || b.Kind == Device):
				a.Problem = fmt.Sprintf("it is on a partition of %s (%s); keep only one of them", b.Path, b.Disk)
			case !diskid.PartitionOf(a.Disk, b.Disk) && !diskid.PartitionOf(b.Disk, a.Disk) && diskid.Overlap(a.Disk, b.Disk),
				a.Number == b.Number && (a.Kind == Device || b.Kind == Device):
				a.Problem = fmt.Sprintf("%s is the same disk or file system (%s); keep only one of them", b.Path, b.Disk)
			}
		}
	}
}
