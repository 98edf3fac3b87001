package fetch

import (
	"fmt"
	"path"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// noSpaceError reports in numbers that a plan does not fit.
type noSpaceError struct{ need, free need }

func (e *noSpaceError) Error() string {
	if e.need.inodes > e.free.inodes && e.free.inodes >= 0 {
		return fmt.Sprintf("no room: %d more files and directories are needed, and the destination has inodes for %d; enlarge it or select less", e.need.inodes, e.free.inodes)
	}
	return fmt.Sprintf("no room: %s more are needed, and the destination has %s free (%d and %d bytes); enlarge it or select less",
		FormatBytes(e.need.bytes), FormatBytes(e.free.bytes), e.need.bytes, e.free.bytes)
}

func (e *noSpaceError) Unwrap() error { return unix.ENOSPC }

// need is an amount of space; inodes below 0 are unlimited.
type need struct{ bytes, inodes int64 }

// spaceNeeded returns what a plan takes in addition to the space used now. alreadyStored returns how many bytes of an
// object earlier runs have left. Replaced and removed files free their space and inodes, but a new file
// exists beside the one that it replaces for some time: that much is added again, up to the limit of
// files without their name.
func (p plan) spaceNeeded(block int64, alreadyStored func(store.Object) int64, remove bool) need {
	var n need
	dirs := make(map[string]bool)
	rounded := func(b int64) int64 { return (b + block - 1) / block * block }
	largest := int64(0)
	above := func(path string) {
		for dir := destination.Parent(path); dir != "" && !dirs[dir]; dir = destination.Parent(dir) {
			dirs[dir] = true
		}
	}
	for _, o := range p.fetch {
		n.bytes += rounded(max(0, o.Size-alreadyStored(o)))
		n.inodes++
		largest = max(largest, o.Size)
		above(o.Path)
	}
	for _, e := range p.link {
		above(e.Path)
		n.bytes += int64(nameBytes + len(path.Base(e.Path)))
	}
	for _, e := range p.keep {
		for dir := destination.Parent(e.Path); dir != "" && dirs[dir]; dir = destination.Parent(dir) {
			delete(dirs, dir)
		}
	}
	n.inodes += int64(len(dirs))
	if len(p.link) > 0 {
		n.bytes += int64(len(dirs)) * block
	}
	back := p.replaced
	if remove {
		for _, e := range p.gone {
			back.bytes += e.Bytes
		}
		back.bytes -= p.shared
	}
	n.bytes += min(p.replaced.bytes, unpublishedBytes+largest) - back.bytes
	n.inodes += min(p.replaced.inodes, unpublishedFiles) - back.inodes
	return n
}

// nameBytes is what a directory entry takes beside the file's name.
const nameBytes = 16

// lineBytes is what a line of the manifest or of the journal takes at most beside the
// names in it.
const lineBytes = 400

// ownSpace returns what fetch takes for itself: a line in the manifest for each file, a note in the journal
// for each small file and for each piece of a large one, a directory of temporary files for each
// worker, and the completion file.
func (p plan) ownSpace(workers int, alreadyStored func(store.Object) int64) need {
	n := need{inodes: int64(workers) + 1}
	for _, o := range p.fetch {
		lines := int64(2)
		if o.Size > wholeLimit {
			lines += max(0, o.Size-alreadyStored(o)) / pieceSize
		}
		n.bytes += lines * int64(lineBytes+len(o.Path)+len(o.ETag)+len(o.Version))
	}
	for _, e := range p.link {
		n.bytes += int64(lineBytes + len(e.Path) + len(e.ETag) + len(e.VersionID))
	}
	return n
}

func (n need) plus(m need) need { return need{n.bytes + m.bytes, n.inodes + m.inodes} }

// freeSpace returns the free space below the directory. On XFS with a project quota, as in a flexlvm
// volume, statfs reports the quota.
func freeSpace(d *destination.Dir) (room need, block int64, err error) {
	var s unix.Statfs_t
	if err := unix.Fstatfs(int(d.Dir.Fd()), &s); err != nil {
		return need{}, 0, fmt.Errorf("ask for free room: %w", err)
	}
	room = need{bytes: int64(s.Bavail) * s.Frsize, inodes: int64(s.Ffree)}
	if s.Files == 0 {
		room.inodes = -1 // the file system creates inodes as they are needed
	}
	return room, max(s.Bsize, 512), nil
}

// checkSpace fails with a noSpaceError if n is more than free.
func checkSpace(n, free need) error {
	if n.bytes > free.bytes || free.inodes >= 0 && n.inodes > free.inodes {
		return &noSpaceError{n, free}
	}
	return nil
}

// formatFiles formats a number of files for people.
func formatFiles[N int | int64](files N) string {
	if files == 1 {
		return "1 file"
	}
	return fmt.Sprintf("%d files", files)
}

// FormatBytes formats a size for people.
func FormatBytes(bytes int64) string {
	unit, n := "B", float64(bytes)
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if n < 1024 && n > -1024 {
			break
		}
		unit, n = next, n/1024
	}
	if unit == "B" {
		return fmt.Sprintf("%d B", bytes)
	}
	return fmt.Sprintf("%.1f %s", n, unit)
}
