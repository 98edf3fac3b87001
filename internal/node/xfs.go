package node

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/internal/xfs"
)

type xfsKind struct{ host command.Programs }

func (xfsKind) info() fsInfo {
	return fsInfo{mountType: mount.XFS, title: "XFS", checkCommand: "xfs_repair -n"}
}

func (k xfsKind) format(ctx context.Context, path string, tags volume.Tags, inodes int64) error {
	return xfs.Mkfs(ctx, k.host.Killable, xfs.Format{Device: path, UUID: tags.FS, Size: tags.Size, Inodes: inodes})
}

func (xfsKind) uuid(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("open device: %w", err)
	}
	defer func() { _ = f.Close() }()
	sb, err := xfs.ReadSuperblock(f)
	if errors.Is(err, xfs.ErrNoFilesystem) {
		err = noFilesystem{err}
	}
	return sb.UUID, err
}

func (k xfsKind) setUUID(ctx context.Context, path, uuid string) error {
	return xfs.SetUUID(ctx, k.host.Killable, path, uuid)
}

// usedAt searches for superblocks that only a mounted file system writes.
func (xfsKind) usedAt(path string, u use) (volume.Bytes, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("open device: %w", err)
	}
	defer func() { _ = f.Close() }()
	size, err := deviceSize(path)
	if err != nil {
		return 0, err
	}
	at, err := xfs.FindCopy(f, size, u.tags.FS, xfs.Groups{
		Count:  volume.AllocationGroups(u.tags.Size, u.inodes),
		Sizes:  append([]volume.Bytes{size}, u.sizes...),
		Aligns: u.aligns,
	})
	if errors.Is(err, xfs.ErrNoFilesystem) {
		err = noFilesystem{err}
	}
	return at, err
}

func (xfsKind) mounted(string) mountedFilesystem { return mountedXFS{} }

// markUsed does nothing: the first grow has the same effect, even if nothing grows.
func (xfsKind) markUsed(string, volume.Tags) (bool, error) { return false, nil }

type mountedXFS struct{}

// grow writes the copies of the superblock even if nothing grows.
func (mountedXFS) grow(root *os.File, device volume.Bytes, inodePercent int) error {
	return xfs.Grow(root, device, inodePercent)
}

func (mountedXFS) free(root *os.File) (volume.Bytes, error) {
	space, err := xfs.ReadSpace(root)
	return space.Free, err
}

func (mountedXFS) boundRetries(device uint64) error { return xfs.BoundRetries(device) }

// trimmable returns allocation groups as the parts.
func (mountedXFS) trimmable(root *os.File) (trimming, error) {
	geometry, err := xfs.ReadGeometry(root)
	return trimming{size: geometry.Size, part: geometry.AllocationGroup}, err
}

// check does nothing: the kernel refuses to mount an XFS whose log cannot be replayed, and notes no damage.
func (mountedXFS) check() error { return nil }
