package node

import (
	"context"
	"errors"
	"os"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A content is what a volume holds: a file system, and the device that it is on. The content of a raw block
// volume (blockKind) is only the device.
type content struct {
	filesystem
	path   string
	number uint64 // as in stat's st_rdev, and in mountinfo
}

// A filesystem implements one type of file system. path is always the path of the device that it is on.
type filesystem interface {
	// info returns the names of the file system.
	info() fsInfo
	// format creates the file system, with the UUID and the size of the tags. inodes is the inode limit, 0
	// for none. The caller must be sure that the volume is in state creating.
	format(ctx context.Context, path string, tags volume.Tags, inodes int64) error
	// uuid reads the superblock. The error wraps errNoFilesystem if there is no valid superblock, and
	// ErrDamaged if the superblock reports damage.
	uuid(path string) (string, error)
	// setUUID changes the UUID of a file system that is not mounted and needs no recovery. Killed, it may
	// leave the file system broken, so it is only for copies that can be created again. The caller must read
	// the UUID to know whether it succeeded.
	setUUID(ctx context.Context, path, uuid string) error
	// mounted returns the operations on the mounted file system.
	mounted(path string) mountedFilesystem
	// markUsed writes a superblock, or a copy of one, that mkfs never writes, so that usedAt recognises the file
	// system even if it was never mounted. It reports whether it wrote anything. XFS needs no mark: its first
	// grow writes one.
	markUsed(path string, tags volume.Tags) (bool, error)
	// usedAt searches a device that may have lost its superblock, or data that mkfs wrote before the
	// superblock, for evidence that it was in use as the volume of these tags, and returns the byte at which
	// it is; the error wraps errNoFilesystem if there is none.
	usedAt(path string, u use) (volume.Bytes, error)
}

// A mountedFilesystem is a file system that is mounted. root is any directory of that mount.
type mountedFilesystem interface {
	// grow grows the file system to the size of its device, and lets inodes use that percentage of it, if the
	// file system limits them. It is idempotent and never shrinks. Afterwards usedAt finds that the file
	// system was in use, if markUsed was called before.
	grow(root *os.File, device volume.Bytes, inodePercent int) error
	// free returns how much space it has for data, regardless of quotas.
	free(root *os.File) (volume.Bytes, error)
	// boundRetries makes the file system give up on a device that accepts no more writes, instead of retrying
	// forever.
	boundRetries(device uint64) error
	// trimmable returns which part of the file system can be trimmed.
	trimmable(root *os.File) (trimming, error)
	// check fails if the kernel noted damage while mounting the file system.
	check() error
}

// fsInfo are the names of a file system.
type fsInfo struct {
	mountType    mount.Type
	title        string // in messages
	checkCommand string // the command with which people inspect a damaged one
}

// A use describes a volume that may have been in use.
type use struct {
	tags   volume.Tags
	inodes int64 // the limit
	// sizes are the sizes that its device may have had when it was formatted, other than its current size.
	sizes []volume.Bytes
	// aligns are the I/O sizes that its device may have reported when it was formatted.
	aligns []volume.Bytes
}

// errNoFilesystem: there is no valid superblock. This alone never means that the device is blank.
var errNoFilesystem = errors.New("no file system")

// noFilesystem is an errNoFilesystem with the text of a specific file system.
type noFilesystem struct{ error }

func (e noFilesystem) Unwrap() error      { return e.error }
func (noFilesystem) Is(target error) bool { return target == errNoFilesystem }

// contentOf returns the content of a volume with these tags on its device d.
func (e *Engine) contentOf(d lvm.Device, tags volume.Tags) content {
	c := content{filesystem: xfsKind{host: e.host}, path: d.Path, number: d.Number}
	switch tags.FSType {
	case volume.Ext4:
		c.filesystem = ext4Kind{host: e.host}
	case volume.Raw:
		c.filesystem = blockKind{engine: e, device: d, tags: tags}
	}
	return c
}
