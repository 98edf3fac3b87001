package destination

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// PublishNew is Publish, but fails with store.ErrInTheWay if something has the name already.
func (d *Dir) PublishNew(temp string, dir *os.File, name string) error {
	from, file, err := d.inSubdir(temp)
	if err != nil {
		return err
	}
	err = unix.Renameat2(int(from.Fd()), file, int(dir.Fd()), name, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) { // the file system does not support the flag, as NFS does not
		err = linkNew(from, file, dir, name)
	}
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%s %w: it was created here while its object was fetched; remove it, or move it elsewhere", name, store.ErrInTheWay)
	}
	if err != nil {
		return fmt.Errorf("rename %s to %s: %w", temp, name, err)
	}
	return nil
}

// linkNew renames a file in two steps, of which the first fails if the new name exists. Killed in between, it leaves both
// names, and renaming the one to the other again does nothing.
func linkNew(from *os.File, file string, to *os.File, name string) error {
	if err := unix.Linkat(int(from.Fd()), file, int(to.Fd()), name, 0); err != nil {
		return err
	}
	return unix.Unlinkat(int(from.Fd()), file, 0)
}
