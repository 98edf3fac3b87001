package destination

import (
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// Prune removes what keep does not accept: files, and directories that are then empty. The control
// directory stays. It returns how many files it has removed.
func Prune(root *os.Root, keep func(name string, dir bool) bool) (removed int, err error) {
	var dirs []string
	err = fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil || name == ".":
			return err
		case name == store.ControlDir && entry.IsDir():
			return fs.SkipDir
		case keep(name, entry.IsDir()):
			return nil
		case entry.IsDir():
			dirs = append(dirs, name)
			return nil
		}
		removed++
		return root.Remove(name)
	})
	if err != nil {
		return removed, err
	}
	for _, dir := range slices.Backward(dirs) { // subdirectories come later
		if left, err := fs.ReadDir(root.FS(), dir); err != nil || len(left) > 0 {
			continue // only a directory known to be empty is removed
		}
		if err := root.Remove(dir); err != nil {
			return removed, fmt.Errorf("remove an empty directory: %w", err)
		}
	}
	return removed, nil
}

// Prune calls the function Prune on the destination.
func (d *Dir) Prune(keep func(name string, dir bool) bool) (removed int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.realDirs = map[string]bool{"": true}
	return Prune(d.Root, keep)
}
