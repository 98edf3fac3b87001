package nfs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
)

// marks is the directory in an export where this provisioner notes which
// directories are its own: one file for each, named after the PersistentVolume. It
// lies beside them and not in them, for what is in them belongs to the tenants.
const marks = ".flexlvm"

// errNoMarks says that this may not be the export, but what lies under it where
// nothing is mounted.
var errNoMarks = errors.New("there is no " + marks + " in it, so it is not known for an export of this provisioner; see whether the right one is mounted. If it was restored without hidden files, make the directory " + marks + " and delete the PersistentVolumes by hand")

// mark is what such a file holds, as JSON.
type mark struct {
	Directory        string `json:"directory"`
	PersistentVolume string `json:"persistentVolume"`
	Claim            string `json:"claim"` // namespace/name; for people
}

func (p place) mark() string { return path.Join(marks, p.volume) }

// readMark reports whether the directory of a volume is marked as ours.
func readMark(root *os.Root, p place) (bool, error) {
	info, err := root.Lstat(marks)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, errNoMarks
	case err != nil:
		return false, err
	case !info.IsDir():
		return false, &foreignError{marks, "is not a directory"}
	}
	content, err := root.ReadFile(p.mark())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var m mark
	if err := json.Unmarshal(content, &m); err != nil {
		return false, fmt.Errorf("read mark %s: %w", p.mark(), err)
	}
	if m.Directory != p.name || m.PersistentVolume != p.volume {
		return false, &foreignError{p.mark(), fmt.Sprintf("is the mark of directory %q of %q", m.Directory, m.PersistentVolume)}
	}
	return true, nil
}

// writeMark marks a directory as ours; it is on disk when this returns. A kill
// leaves no half of one.
func writeMark(root *os.Root, p place, claim string) (err error) {
	if err := root.Mkdir(marks, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	content, err := json.Marshal(mark{Directory: p.name, PersistentVolume: p.volume, Claim: claim})
	if err != nil {
		return fmt.Errorf("write mark: %w", err)
	}
	unfinished := path.Join(marks, "."+p.volume)
	f, err := root.OpenFile(unfinished, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(content, '\n'))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return root.Rename(unfinished, p.mark())
}

// removeMark is the last step of a disposal.
func removeMark(root *os.Root, p place) error {
	if err := root.Remove(p.mark()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
