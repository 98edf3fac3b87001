package nfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/flexlvm/flexlvm/internal/nfsmark"
)

// makeDirectory creates the directory of a new volume. It may be killed at any instant; the next call
// continues. The mark is written first, so that no directory of flexlvm's is ever without one, and a
// directory without a mark is somebody else's. asked reports whether this call has written the mark, so
// that only now the server learns which size to enforce.
func makeDirectory(ctx context.Context, root *os.Root, p place, access Access, claim string) (asked bool, err error) {
	if asked, err = writeMark(root, p, claim); err != nil {
		return asked, err
	}
	if err := ctx.Err(); err != nil {
		return asked, err // the caller does not wait any longer
	}
	return asked, fillIn(root, p, access)
}

// writeMark marks the directory of a new volume, unless its mark already has the same size: the class
// may have been created again, with another enforceSize, while the claim was waiting. An export without
// marks gets its first one here, so its caller must know that this is the export (see isUnused).
func writeMark(root *os.Root, p place, claim string) (written bool, err error) {
	m, marked, err := readMark(root, p)
	if err != nil && !errors.Is(err, nfsmark.ErrNone) {
		return false, err
	}
	if marked && m.Size == p.size {
		return false, nil
	}
	if !marked {
		if _, err := root.Lstat(p.name); err == nil {
			return false, &nfsmark.ForeignError{Name: p.name, What: "exists already and was not created for this claim"}
		} else if !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	return true, p.mark(claim).Write(root)
}

// fillIn creates the marked directory, with its group and mode.
func fillIn(root *os.Root, p place, access Access) error {
	// Nobody else may use it before its group and mode are set.
	if err := root.Mkdir(p.name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := nfsmark.CheckPlainDirectory(root, p.name); err != nil {
		return err
	}
	if access.Group >= 0 {
		if err := root.Lchown(p.name, -1, access.Group); err != nil {
			return err
		}
	}
	return setMode(root, p.name, access.Mode)
}

// setMode changes the mode of a directory by its descriptor. Root.Chmod uses fchmodat2 (Linux 6.6),
// which a container runtime may block: crun with a seccomp profile that does not know the system call
// returns EPERM, as if the server refused.
func setMode(root *os.Root, name string, mode fs.FileMode) error {
	dir, err := root.OpenFile(name, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	return errors.Join(dir.Chmod(mode), dir.Close())
}

// present reports whether an entry with this name exists, including a link.
func present(root *os.Root, name string) (bool, error) {
	_, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// A finding is the state in which a volume's directory was found.
type finding string

const (
	inPlace  finding = "in place"
	doomed   finding = "being removed"
	archived finding = "archived"
	missing  finding = "missing" // but still marked: somebody else removed the directory, or flexlvm was killed after removing it
	finished finding = "kept"    // archived and unmarked: an earlier call finished the disposal
	gone     finding = "gone"    // and unmarked: an earlier call finished the removal, or the export is not the one in which it was made
)

// find returns how far the disposal of a volume has come. Whatever it finds must be flexlvm's by its
// mark. Finding nothing counts only in an export that has the marks of this provisioner: an empty
// directory into which nothing is mounted proves nothing.
func find(root *os.Root, p place) (finding, error) {
	_, marked, err := readMark(root, p)
	if err != nil {
		return "", err
	}
	var found []finding
	kept := false
	for _, candidate := range []struct {
		name string
		as   finding
	}{{p.name, inPlace}, {doomedPrefix + p.name, doomed}, {archivedPrefix + p.name, archived}} {
		there, err := present(root, candidate.name)
		if err != nil {
			return "", err
		}
		if !there {
			continue
		}
		if !marked && candidate.as == archived {
			kept = true
			continue
		}
		if !marked {
			return "", &nfsmark.ForeignError{Name: candidate.name, What: "has no mark in " + nfsmark.Dir + " that this provisioner made it for " + p.volume}
		}
		if err := nfsmark.CheckPlainDirectory(root, candidate.name); err != nil {
			return "", err
		}
		found = append(found, candidate.as)
	}
	switch {
	case len(found) > 1:
		return "", &nfsmark.ForeignError{Name: p.name, What: fmt.Sprintf("is there more than once: %s and %s", found[0], found[1])}
	case len(found) == 1:
		return found[0], nil
	case marked:
		return missing, nil
	case kept:
		return finished, nil
	}
	return gone, nil
}

// archive renames the directory of a volume, and returns the state in which it found it. Killed before
// the rename, it has changed nothing; killed after it, the next call removes the mark.
func archive(ctx context.Context, root *os.Root, p place) (finding, error) {
	found, err := find(root, p)
	if err != nil {
		return "", err
	}
	from := map[finding]string{inPlace: p.name, doomed: doomedPrefix + p.name}[found]
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if from != "" {
		if err := root.Rename(from, archivedPrefix+p.name); err != nil {
			return "", err
		}
	}
	return found, nfsmark.Remove(root, p.volume)
}

// remove renames the directory of a volume, so that nobody mistakes it for a volume, and then removes
// some of its entries. more reports whether it must be called again. The mark is removed last, so that
// a call after a kill still recognises the directory as flexlvm's. Unless mayRename, a directory in its
// place is an error: it was not there when the removal began, so somebody has put it back.
func remove(ctx context.Context, root *os.Root, p place, mayRename bool) (found finding, more bool, err error) {
	if found, err = find(root, p); err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return "", false, err
	}
	switch found {
	case archived:
		return "", false, &nfsmark.ForeignError{Name: archivedPrefix + p.name, What: "is kept for a person, and was to be removed"}
	case inPlace:
		if !mayRename {
			return "", false, &nfsmark.ForeignError{Name: p.name, What: "was put back in its place while it was removed"}
		}
		if err := root.Rename(p.name, doomedPrefix+p.name); err != nil {
			return "", false, err
		}
		// A pod that still mounts the directory can create nothing in it, unless it runs as root.
		if err := setMode(root, doomedPrefix+p.name, 0o700); err != nil {
			return "", false, err
		}
	case missing, finished, gone:
		return found, false, nfsmark.Remove(root, p.volume)
	}
	empty, err := clearSome(ctx, root, doomedPrefix+p.name)
	if err != nil || !empty {
		return found, err == nil, err
	}
	return found, false, nfsmark.Remove(root, p.volume)
}
