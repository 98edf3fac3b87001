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

type ext4Kind struct{ host command.Programs }

func (ext4Kind) info() fsInfo {
	return fsInfo{mountType: mount.Ext4, title: "ext4", checkCommand: "e2fsck -fn"}
}

// format ignores the inode limit: ext4's default number of inodes suffices for any limit (Spec.Validate).
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

// checkExt4 refuses a file system in which errors were found. The kernel would mount it, and writing to it
// may destroy more. Nothing is repaired automatically, because a repair may, too. A write to the journal that failed, as
// in a full thin pool, counts as such an error.
func checkExt4(path string, sb ext4.Superblock) error {
	if !sb.Errors {
		return nil
	}
	return fmt.Errorf("%w: the ext4 file system %s on %s is marked as having errors, and is not mounted until it has been checked: see the kernel's log and `e2fsck -fn %[3]s`; save what is on it before `e2fsck -f` repairs it", ErrDamaged, sb.UUID, path)
}

const (
	checksumPoll = 5 * time.Millisecond
	checksumWait = 250 * time.Millisecond
)

// readExt4 reads the superblock of a file system that may be mounted: while the kernel writes the superblock,
// its checksum is wrong for a moment.
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

func (ext4Kind) markUsed(path string, tags volume.Tags) (written bool, err error) {
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

// usedAt searches for marked copies of the superblock.
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

// mountedExt4 is a mounted ext4, with the path of its device.
type mountedExt4 struct{ path string }

// grow ignores the inode percentage: each added block group brings its inodes.
func (m mountedExt4) grow(root *os.File, device volume.Bytes, _ int) error {
	sb, err := readExt4(m.path)
	if err != nil {
		return err
	}
	return ext4.Grow(root, sb, device)
}

func (mountedExt4) free(root *os.File) (volume.Bytes, error) { return ext4.Free(root) }

// boundRetries does nothing: ext4 does not retry.
func (mountedExt4) boundRetries(uint64) error { return nil }

// trimmable returns block groups as the parts. Linux before 6.6 marks a whole group as trimmed after a
// request to trim a piece of it, and skips the rest.
func (m mountedExt4) trimmable(*os.File) (trimming, error) {
	sb, err := readExt4(m.path)
	return trimming{size: sb.Size, part: volume.Ext4Group, whole: true}, err
}

// check rereads the superblock: the kernel also mounts a file system whose journal records a failed write,
// and notes that error there.
func (m mountedExt4) check() error {
	sb, err := readExt4(m.path)
	if err != nil {
		return err
	}
	return checkExt4(m.path, sb)
}
