package fetch

import (
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
)

// removeUnknown removes files that the manifest does not list from a version that was begun. A run that
// is killed after it renamed a file and before it wrote the line leaves such files, and nothing else
// would remove those that the source no longer has. Without a manifest, which a kill during a removal
// leaves, everything is removed, including the completion file: with an empty manifest the version
// would look complete.
func (v *versions) removeUnknown(number int) error {
	known, err := v.manifestOf(number)
	if err != nil || known == nil {
		return err
	}
	of, err := v.root.OpenRoot(v.data(number))
	if err != nil {
		return fmt.Errorf("check version %d: %w", number, err)
	}
	defer func() { _ = of.Close() }() // nothing is written through it
	if len(known) == 0 {
		err = of.Remove(destination.CompleteFile)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err == nil {
		_, err = destination.Prune(of, func(name string, dir bool) bool {
			_, is := known[name]
			return is && !dir
		})
	}
	if err != nil {
		return fmt.Errorf("look for what is left in version %d: %w", number, err)
	}
	return nil
}

// removeStray is removeUnknown for the current version while it is still incomplete. Readers may have
// opened files that the source has, so these stay, too, until fetching replaces them. It returns how
// many files it has removed.
func (r *run) removeStray(listed placement) (removed int, err error) {
	if !r.exclusive {
		return 0, nil
	}
	files, dirs := map[string]bool{}, map[string]bool{}
	for path := range r.manifest.entries {
		files[path] = true
	}
	for _, o := range listed.files {
		files[o.Path] = true
	}
	for _, dir := range listed.dirs {
		dirs[dir] = true
	}
	removed, err = r.dest.Prune(func(name string, dir bool) bool {
		if dir {
			return dirs[name]
		}
		return files[name]
	})
	if err != nil {
		return removed, fmt.Errorf("remove what a killed run has left: %w", err)
	}
	return removed, nil
}

// manifestOf returns the manifest of a version that was begun; nil if none was begun.
func (v *versions) manifestOf(number int) (map[string]Entry, error) {
	if info, err := v.root.Lstat(v.data(number)); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("check version %d: %w", number, err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("check version %d: %s is not a directory; remove it", number, path.Join(v.dir, v.data(number)))
	}
	known, err := readManifest(path.Join(v.dir, v.data(number)))
	if err != nil {
		return nil, fmt.Errorf("check version %d: %w", number, err)
	}
	return known, nil
}
