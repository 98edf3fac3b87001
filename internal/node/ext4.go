package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/ext4"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// ext4Kind is ext4.
type ext4Kind struct{ host command.Programs }

func (ext4Kind) words() words {
	return words{mount: mount.Ext4, title: "ext4", check: "e2fsck -fn"}
}

// format: as many inodes as ext4 makes by itself are enough for any limit (Spec.Validate).
func (k ext4Kind) format(ctx context.Context, path string, tags volume.Tags, _ int64) error {
	return ext4.Mkfs(ctx, k.host.Killable, ext4.Format{Device: path, UUID: tags.FS, Size: tags.Size})
}

func (ext4Kind) uuid(path string) (string, error) {
	sb, err := readExt4(path)
	if err != nil {
		return "", err
	}
	return sb.UUID, checkExt4(path, sb)
}

// checkExt4 refuses a file system in which damage was found. The kernel would mount it, and
// what it writes then may destroy more; nothing is repaired by itself, for that may, too.
func checkExt4(path string, sb ext4.Superblock) error {
	if !sb.Errors {
		return nil
	}
	return fmt.Errorf("%w: the ext4 file system %s on %s says of itself that errors were found in it, and is not mounted until a person has looked: see the kernel's log and `e2fsck -fn %[3]s`; save what is on it before `e2fsck -f` repairs it", ErrDamaged, sb.UUID, path)
}

const (
	checksumPoll = 5 * time.Millisecond
	checksumWait = 250 * time.Millisecond
)

// readExt4 reads the superblock of a file system that may be mounted: the kernel may just be
// writing it, and for a moment its checksum is wrong.
func readExt4(path string) (ext4.Superblock, error) {
	f, err := os.Open(path)
	if err != nil {
		return ext4.Superblock{}, fmt.Errorf("open device: %w", err)
	}
	defer func() { _ = f.Close() }()
	for began := time.Now(); ; <-time.After(checksumPoll) {
		sb, err := ext4.ReadSuperblock(f)
		if errors.Is(err, ext4.ErrChecksum) && time.Since(began) < checksumWait {
			continue
		}
		if errors.Is(err, ext4.ErrNoFilesystem) {
			err = noFilesystem{err}
		}
		return sb, err
	}
}

func (k ext4Kind) setUUID(ctx context.Context, path, uuid string) error {
	return ext4.SetUUID(ctx, k.host.Killable, path, uuid)
}

func (ext4Kind) mark(path string, tags volume.Tags) (written bool, err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return false, fmt.Errorf("open device: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := deviceSize(path)
	if err != nil {
		return false, err
	}
	return ext4.MarkCopies(f, size, tags.FS)
}

// usedAt goes by the copies of the superblock that are marked.
func (ext4Kind) usedAt(path string, u use) (volume.Bytes, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("open device: %w", err)
	}
	defer func() { _ = f.Close() }()
	size, err := deviceSize(path)
	if err != nil {
		return 0, err
	}
	at, err := ext4.FindCopy(f, size, u.tags.FS)
	if errors.Is(err, ext4.ErrNoFilesystem) {
		err = noFilesystem{err}
	}
	return at, err
}

func (ext4Kind) mounted(path string) mountedFilesystem { return mountedExt4{path} }

// mountedExt4 is ext4 that is mounted, and the path of its device.
type mountedExt4 struct{ path string }

// grow goes by no percentage: each block group that is added brings its inodes.
func (m mountedExt4) grow(root *os.File, device volume.Bytes, _ int) error {
	sb, err := readExt4(m.path)
	if err != nil {
		return err
	}
	return ext4.Grow(root, sb, device)
}

func (mountedExt4) free(root *os.File) (volume.Bytes, error) { return ext4.Free(root) }

// boundRetries has nothing to do: ext4 does not try again.
func (mountedExt4) boundRetries(uint64) error { return nil }

// trimmable: the parts are block groups. Linux before 6.6 takes a group for trimmed of which
// it was asked to trim a piece, and leaves the rest.
func (m mountedExt4) trimmable(*os.File) (trimming, error) {
	sb, err := readExt4(m.path)
	return trimming{size: sb.Size, part: volume.Ext4Group, whole: true}, err
}

// check: the kernel mounts one whose journal says that writing to it failed, and notes it.
func (m mountedExt4) check() error {
	sb, err := readExt4(m.path)
	if err != nil {
		return err
	}
	return checkExt4(m.path, sb)
}
