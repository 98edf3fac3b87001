package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// archiveDir is LVM's archive of its groups' metadata by default, relative to the root directory.
const archiveDir = "etc/lvm/archive"

// Limits above which there is a warning. LVM itself (archive.c in lvm2) advises to prune the archive of a
// group from this number of files on.
const (
	maxArchiveFiles = 8192
	maxArchiveSize  = volume.GiB
)

// checkArchive checks how much LVM has archived. The archive lies on the root disk, and LVM lists it whenever
// it adds a file.
func (d *Doctor) checkArchive(context.Context) []Finding {
	const check = "LVM's archive"
	files, size, err := measureArchive(d.path(archiveDir))
	var above string // without the exact numbers, which would change the node's report again and again
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ok(check, "none")
	case err != nil:
		return warn(check, err.Error(), "run it as root")
	case size > maxArchiveSize:
		above = maxArchiveSize.String()
	case files > maxArchiveFiles:
		above = fmt.Sprintf("%d files", maxArchiveFiles)
	default:
		return ok(check, fmt.Sprintf("%s, %s", volume.Pluralize(files, "file", "files"), size))
	}
	return warn(check, fmt.Sprintf("more than %s in /%s; they take up the root disk and slow LVM's commands", above, archiveDir),
		"lower retain_days in lvm.conf, section backup (`lvmconfig --typeconfig full backup/retain_days backup/retain_min` shows the present values). LVM removes older files when it next archives their group; remove those of former groups yourself")
}

// measureArchive counts the files in a directory, and their bytes, until either exceeds its limit.
func measureArchive(path string) (files int, size volume.Bytes, err error) {
	dir, err := os.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = dir.Close() }()
	for files <= maxArchiveFiles && size <= maxArchiveSize {
		entries, err := dir.ReadDir(256)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return files, size, err
		}
		for _, e := range entries {
			info, err := e.Info()
			if err != nil || !info.Mode().IsRegular() {
				continue // for example, LVM has just removed it
			}
			files++
			size += volume.Bytes(info.Size())
		}
	}
	return files, size, nil
}
