package node

import (
	"context"
	"errors"
	"os"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A content is what a volume holds: its file system, and the device that this lies on. Of a raw
// block volume (blockKind) it is the device alone.
type content struct {
	filesystem
	path   string
	number uint64 // as in stat's st_rdev, and in mountinfo
}

// A filesystem is a kind of file system that volumes are made with. path is always that of
// the device that it lies on.
type filesystem interface {
	// words are what people, and the kernel, call it.
	words() words
	// format makes it, with the UUID and the size of the tags. inodes is the limit on
	// them, 0 for none. The caller must be sure that the volume is in state creating.
	format(ctx context.Context, path string, tags volume.Tags, inodes int64) error
	// uuid reads the superblock. The error wraps errNoFilesystem if there is no valid one,
	// and ErrDamaged if it says that the file system is damaged.
	uuid(path string) (string, error)
	// setUUID changes the UUID of one that is not mounted and needs no recovery. Killed, it
	// may leave it broken, so it is for copies that can be made again. Whether it succeeded
	// is for the caller to read.
	setUUID(ctx context.Context, path, uuid string) error
	// mounted is what can be done to it while it is mounted.
	mounted(path string) mountedFilesystem
	// mark writes a superblock, or a copy of one, that mkfs never writes, so that usedAt
	// recognises the file system even if nobody has mounted it yet. It reports whether it wrote
	// anything. XFS needs no mark: its first grow writes one.
	mark(path string, tags volume.Tags) (bool, error)
	// usedAt looks, on a device that may have lost its superblock, or what mkfs wrote before
	// it, for what shows that it was in use as the volume of these tags, and returns at which
	// byte; the error wraps errNoFilesystem if nothing shows that.
	usedAt(path string, u use) (volume.Bytes, error)
}

// A mountedFilesystem does what takes a mount. root is any directory of that.
type mountedFilesystem interface {
	// grow makes it as large as its device, which has that size, and lets inodes take that
	// percentage of it, where its kind limits them. It may be called again,
	// and never shrinks. Afterwards usedAt finds that it was in use, if mark has come before.
	grow(root *os.File, device volume.Bytes, inodePercent int) error
	// free is how much it has for data, whatever quotas say.
	free(root *os.File) (volume.Bytes, error)
	// boundRetries makes it give up on a device that takes no more writes, instead of trying
	// for ever.
	boundRetries(device uint64) error
	// trimmable returns what of it can be trimmed.
	trimmable(root *os.File) (trimming, error)
	// check looks for damage that the kernel noted as it mounted it.
	check() error
}

// words are what a file system is called.
type words struct {
	mount mount.Type
	title string // for people
	check string // the command by which people look at one that is damaged
}

// A use is what is known of a volume that may have been in use.
type use struct {
	tags   volume.Tags
	inodes int64 // the limit
	// sizes are those that its device may have had when it was formatted, besides that which
	// it has.
	sizes []volume.Bytes
	// aligns are the sizes in which the device may have asked to be used.
	aligns []volume.Bytes
}

// errNoFilesystem: there is no valid superblock. That alone never means that the device is
// blank.
var errNoFilesystem = errors.New("no file system")

// noFilesystem is an errNoFilesystem in the words of a kind of file system.
type noFilesystem struct{ error }

func (e noFilesystem) Unwrap() error      { return e.error }
func (noFilesystem) Is(target error) bool { return target == errNoFilesystem }

// contentOf returns what a volume with these tags holds, on its device d.
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
