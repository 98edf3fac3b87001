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

// currentVersion is the version of a dataset that is current, as a mount of its own; nil if there
// are no versions. The loader may replace it meanwhile: it is whole all the same, and stays,
// as retireVersions sees that it is mounted.
func currentVersion(whole *mount.Attached, t *mount.Target) (*mount.Attached, error) {
	number, err := readCurrent(whole)
	if err != nil || number == 0 {
		return nil, err
	}
	return whole.Below(path.Join(protocol.VersionsDir, strconv.Itoa(number)), t)
}

// readCurrent reads the number of the current version; 0 if there are no versions.
func readCurrent(of *mount.Attached) (int, error) {
	file, err := of.OpenBelow(protocol.CurrentFile, unix.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look which version of the dataset is current: %w", err)
	}
	defer func() { _ = file.Close() }() // it was only read
	info, err := file.Stat()
	if err != nil {
		return 0, fmt.Errorf("look which version of the dataset is current: %w", err)
	}
	if !info.Mode().IsRegular() { // a pod's pipe is read for as long as the pod wants
		return 0, refused("%s of the dataset is no regular file; delete the replica's claim, so that it is loaded anew", protocol.CurrentFile)
	}
	const most = 32
	data, err := io.ReadAll(io.LimitReader(file, most))
	if err != nil {
		return 0, fmt.Errorf("look which version of the dataset is current: %w", err)
	}
	number, is := protocol.ParseVersion(strings.TrimSuffix(string(data), "\n"))
	if !is {
		return 0, refused("%s of the dataset holds no number of a version; delete the replica's claim, so that it is loaded anew", protocol.CurrentFile)
	}
	return number, nil
}

// retireVersions renames the versions before the current one that are not mounted, for the loader
// to remove: a new reader gets the current one, or a later one. The caller holds the volume's
// lock, as all who mount do. In any doubt a version stays.
func (e *Engine) retireVersions(f found, whole *mount.Attached) error {
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
		return fmt.Errorf("look at the versions of the dataset: %w", err)
	}
	defer func() { _ = dir.Close() }()
	for seen := 0; seen < versionsListed; {
		names, err := dir.Readdirnames(versionsAtOnce)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list the versions of the dataset: %w", err)
		}
		seen += len(names)
		for _, name := range names {
			number, is := protocol.ParseVersion(name)
			if !is || number >= current || isRead(number, mounted[f.content.number]) {
				continue
			}
			if err := e.retireVersion(f, dir, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// Pods may write to the volume, and make any number of names there. Those beyond
// versionsListed are not looked at, and no more than versionsAtOnce are in memory.
const (
	versionsListed = 1 << 14
	versionsAtOnce = 256
)

func (e *Engine) retireVersion(f found, dir *os.File, name string) error {
	if err := unix.Renameat2(int(dir.Fd()), name, int(dir.Fd()), name+protocol.UnreadSuffix, unix.RENAME_NOREPLACE); err != nil {
		return fmt.Errorf("retire version %s of the dataset: %w", name, err)
	}
	e.after("retire version")
	e.log.WithField("volume", string(f.device.Group)+"/"+string(f.device.Name)).WithField("version", name).
		Info("no pod reads this version of the dataset any more, so its loader removes it")
	return nil
}

// isRead reports whether one of these mounts of a volume shows a version, or part of it. A
// mount for reading of more than a version shows them all.
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

// beforeLoader does what is due when a loader is about to get a replica. It may go on
// without.
func (e *Engine) beforeLoader(f found, spec volume.Spec, whole *mount.Attached) {
	if spec.Kind != volume.Dataset || spec.ReadOnly {
		return
	}
	if err := e.retireVersions(f, whole); err != nil && !errors.Is(err, os.ErrNotExist) {
		e.log.WithError(err).WithField("volume", string(f.device.Group)+"/"+string(f.device.Name)).
			Warn("versions of this dataset that nobody reads stay; its next loader tries again")
	}
}
