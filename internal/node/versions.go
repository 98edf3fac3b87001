package node

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// currentVersion returns the current version of a dataset as a mount of its own; nil if the dataset has no
// versions. If the loader replaces that version meanwhile, it stays complete and is kept, because
// retireVersions finds it mounted.
func currentVersion(whole *mount.Attached, t *mount.Target) (*mount.Attached, error) {
	number, err := readCurrent(whole)
	if err != nil || number == 0 {
		return nil, err
	}
	return whole.Subdirectory(path.Join(protocol.VersionsDir, strconv.Itoa(number)), t)
}

// readCurrent returns the number of the current version; 0 if there are no versions.
func readCurrent(of *mount.Attached) (int, error) {
	file, err := of.OpenBelow(protocol.CurrentFile, unix.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	data, n := make([]byte, 32), 0
	if err == nil {
		n, err = file.ReadAt(data, 0) // not Read, which waits for the writer of a pipe
		_ = file.Close()              // it was only read
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, unix.ESPIPE) {
		return 0, fmt.Errorf("check the versions of the dataset: %w", err)
	}
	number, is := protocol.ParseVersion(strings.TrimSuffix(string(data[:n]), "\n"))
	if !is {
		return 0, refused("%s of the dataset holds no number of a version; delete the replica's claim, so that it is loaded again", protocol.CurrentFile)
	}
	return number, nil
}

// retireVersions renames the versions before the current one that are not mounted, for the loader to remove:
// a new reader gets the current version, or a later one. The caller holds the volume's lock, as every mount
// does. In doubt, a version stays.
func (e *Engine) retireVersions(f openedVolume, whole *mount.Attached) error {
	current, err := readCurrent(whole)
	if err != nil || current <= 1 {
		return err
	}
	mounted, err := mount.ByDevice()
	if err != nil {
		return err
	}
	dir, err := whole.OpenBelow(protocol.VersionsDir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("check the versions of the dataset: %w", err)
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(versionsListed)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("check the versions of the dataset: %w", err)
	}
	for _, name := range names {
		number, is := protocol.ParseVersion(name)
		if !is || number >= current || isRead(number, mounted[f.content.number]) {
			continue
		}
		if err := unix.Renameat2(int(dir.Fd()), name, int(dir.Fd()), name+protocol.UnreadSuffix, unix.RENAME_NOREPLACE); err != nil {
			return fmt.Errorf("retire version %d of the dataset: %w", number, err)
		}
		e.after("retire version")
		e.log.WithField("volume", string(f.device.Group)+"/"+string(f.device.Name)).WithField("version", number).
			Info("no pod reads this version of the dataset any more, so its loader removes it")
	}
	return nil
}

// versionsListed bounds how many names in the directory of the versions are read: pods may write to the
// volume, and create any number of names there.
const versionsListed = 4096

// isRead reports whether one of these mounts of a volume shows a version, or part of it. A read-only mount
// that is not of a single version shows all of them.
func isRead(number int, mounts []mount.Point) bool {
	versions := "/" + protocol.VersionsDir + "/"
	for _, m := range mounts {
		below, in := strings.CutPrefix(m.Root, versions)
		if in {
			below, _, _ = strings.Cut(below, "/")
		}
		if in && below == strconv.Itoa(number) || !in && m.ReadOnly {
			return true
		}
	}
	return false
}

// beforeLoader retires versions before a loader gets a replica. A failure does not stop the loader.
func (e *Engine) beforeLoader(f openedVolume, spec volume.Spec, whole *mount.Attached) {
	if spec.Kind != volume.Dataset || spec.ReadOnly {
		return
	}
	if err := e.retireVersions(f, whole); err != nil && !errors.Is(err, os.ErrNotExist) {
		e.log.WithError(err).WithField("volume", string(f.device.Group)+"/"+string(f.device.Name)).
			Warn("versions of this dataset that nobody reads stay; its next loader tries again")
	}
}
