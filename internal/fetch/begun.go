package fetch

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// removeUnknown removes from a version that was begun what its manifest does not name. A run
// that is killed after it gave a file its name and before it wrote the line leaves such files.
// If the source does not have them any more, nothing else would remove them. Without a
// manifest, which a kill amid a removal leaves, everything goes, and what says that it is
// complete: by a manifest without files, all of them are there.
func (v *versions) removeUnknown(number int) error {
	known, err := v.manifestOf(number)
	if err != nil || known == nil {
		return err
	}
	of := v.data(number)
	if len(known) == 0 {
		err = v.root.Remove(path.Join(of, destination.CompleteFile))
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	var dirs []string
	if err == nil {
		dirs, err = v.removeFilesBut(known, of)
	}
	if err != nil {
		return fmt.Errorf("look for what is left in version %d: %w", number, err)
	}
	for _, dir := range slices.Backward(dirs) { // those below come later
		if left, err := fs.ReadDir(v.root.FS(), dir); err != nil || len(left) > 0 {
			continue // what is not seen to be empty stays
		}
		if err := v.root.Remove(dir); err != nil {
			return fmt.Errorf("remove an empty directory of version %d: %w", number, err)
		}
	}
	return nil
}

// removeFilesBut removes the files of a version that are not known, and returns its directories.
func (v *versions) removeFilesBut(known map[string]Entry, of string) (dirs []string, err error) {
	err = fs.WalkDir(v.root.FS(), of, func(name string, entry fs.DirEntry, err error) error {
		below := strings.TrimPrefix(name, of+"/")
		_, is := known[below]
		switch {
		case err != nil || name == of:
			return err
		case below == store.ControlDir && entry.IsDir():
			return fs.SkipDir
		case entry.IsDir():
			dirs = append(dirs, name)
			return nil
		case is:
			return nil
		}
		return v.root.Remove(name)
	})
	return dirs, err
}

// manifestOf reads what a version that was begun is known to have; nil if none was begun.
func (v *versions) manifestOf(number int) (map[string]Entry, error) {
	if info, err := v.root.Lstat(v.data(number)); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("look at version %d: %w", number, err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("look at version %d: %s is no directory; remove it", number, path.Join(v.dir, v.data(number)))
	}
	known, err := readManifest(path.Join(v.dir, v.data(number)))
	if err != nil {
		return nil, fmt.Errorf("look at version %d: %w", number, err)
	}
	return known, nil
}
