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

// makeDirectory makes the directory of a new volume. It may be killed at any
// instant, and goes on from there when it is called again: the mark comes first,
// so that no directory of flexlvm's is ever without one, and a directory without a
// mark is somebody else's. asked reports whether this call has written the mark, so
// that the server hears only now to what size it is to hold the directory.
func makeDirectory(ctx context.Context, root *os.Root, p place, access Access, claim string) (asked bool, err error) {
	if asked, err = writeMark(root, p, claim); err != nil {
		return asked, err
	}
	if err := ctx.Err(); err != nil {
		return asked, err // nobody waits any more
	}
	return asked, fillIn(root, p, access)
}

// writeMark marks the directory of a new volume, unless its mark says the same already: the class
// may have been made anew, with another enforceSize, while the claim was waiting.
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
			return false, &nfsmark.ForeignError{Name: p.name, What: "is there already and was not made for this claim"}
		} else if !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	return true, p.mark(claim).Write(root)
}

// fillIn makes the directory that is marked, with its group and mode.
func fillIn(root *os.Root, p place, access Access) error {
	// Nobody else may use it before its group and mode are set.
	if err := root.Mkdir(p.name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := nfsmark.CheckOwn(root, p.name); err != nil {
		return err
	}
	if access.Group >= 0 {
		if err := root.Lchown(p.name, -1, access.Group); err != nil {
			return err
		}
	}
	return setMode(root, p.name, access.Mode)
}

// setMode changes the mode of a directory by its descriptor. Root.Chmod asks the kernel
// by fchmodat2 (Linux 6.6), which a container runtime may answer itself: crun with a
// seccomp profile that does not know the call says EPERM, as if the server refused.
func setMode(root *os.Root, name string, mode fs.FileMode) error {
	dir, err := root.OpenFile(name, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	return errors.Join(dir.Chmod(mode), dir.Close())
}

// present reports whether there is anything of that name, a link as well.
func present(root *os.Root, name string) (bool, error) {
	_, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// What was found where a volume's directory should be.
type finding string

const (
	inPlace  finding = "in place"
	doomed   finding = "being removed"
	archived finding = "archived"
	missing  finding = "missing" // with its mark there: somebody else removed it, or flexlvm was killed after it had
	finished finding = "gone"    // without mark: an earlier call did all there is to do
)

// find tells how far the disposal of a volume has come. Whatever is there must be
// flexlvm's by its mark. That nothing is there counts only in an export that has the
// marks of this provisioner: an empty directory into which nothing is mounted
// proves nothing.
func find(root *os.Root, p place) (finding, error) {
	_, marked, err := readMark(root, p)
	if err != nil {
		return "", err
	}
	var found []finding
	for _, candidate := range []struct {
		name string
		as   finding
	}{{p.name, inPlace}, {doomedPrefix + p.name, doomed}, {archivedPrefix + p.name, archived}} {
		there, err := present(root, candidate.name)
		if err != nil {
			return "", err
		}
		if !there || !marked && candidate.as == archived {
			continue // archived and unmarked: that was done long ago
		}
		if !marked {
			return "", &nfsmark.ForeignError{Name: candidate.name, What: "has no mark in " + nfsmark.Dir + " that this provisioner made it for " + p.volume}
		}
		if err := nfsmark.CheckOwn(root, candidate.name); err != nil {
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
	}
	return finished, nil
}

// archive renames the directory of a volume, and gives what it found. Killed before
// the rename it has done nothing; killed after it, the next call takes the mark
// away.
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

// remove renames the directory of a volume so that nobody takes it for a volume any
// more, and then removes some of what is in it. more tells that it must be called
// again. The mark goes last, so that a call that comes after a kill finds the
// directory still to be flexlvm's.
func remove(ctx context.Context, root *os.Root, p place) (found finding, more bool, err error) {
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
		if err := root.Rename(p.name, doomedPrefix+p.name); err != nil {
			return "", false, err
		}
		// A pod that still has it mounted can make nothing new in it, unless it runs as root.
		if err := setMode(root, doomedPrefix+p.name, 0o700); err != nil {
			return "", false, err
		}
	case missing, finished:
		return found, false, nfsmark.Remove(root, p.volume)
	}
	empty, err := clearSome(ctx, root, doomedPrefix+p.name)
	if err != nil || !empty {
		return found, err == nil, err
	}
	return found, false, nfsmark.Remove(root, p.volume)
}
