package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/durable"
	"github.com/flexlvm/flexlvm/internal/mountinfo"
)

// ErrMounted: flexlvm volumes are mounted, and kubelet needs the driver to unmount them.
var ErrMounted = errors.New("volumes are mounted")

// Uninstall removes the driver and its directory. changed is false if there was none.
func (p Place) Uninstall(ctx context.Context) (changed bool, err error) {
	if _, err := os.Lstat(p.Dir()); errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	release, err := p.lock(ctx)
	if err != nil {
		return false, err
	}
	defer release()
	if err := removeStale(p.temp()); err != nil {
		return false, err
	}
	if err := os.Remove(p.Driver()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, fmt.Errorf("remove the driver: %w", err)
	}
	if err := os.Remove(p.Dir()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return true, fmt.Errorf("remove the driver's directory: %w; its other files are not flexlvm's", err)
	}
	return true, durable.Sync(p.pluginDir)
}

// Foreign returns the names in the driver's directory that do not belong there. Whenever one of those files
// changes, kubelet calls the driver.
func (p Place) Foreign() ([]string, error) {
	entries, err := os.ReadDir(p.Dir())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("check the driver's directory: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.Name() != driverFile && e.Name() != tempFile {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Unfinished reports whether an installation was interrupted.
func (p Place) Unfinished() bool {
	_, err := os.Lstat(p.temp())
	return err == nil
}

// hostPIDNamespace identifies a machine's first PID namespace (PROC_PID_INIT_INO in the kernel's
// include/linux/proc_ns.h).
const hostPIDNamespace = "pid:[4026531836]"

// HostMounts returns the path of the file that lists the host's mounts, given the mount point of proc. It fails
// in a container that cannot see the host's mounts.
func HostMounts(proc string) (string, error) {
	ns, err := os.Readlink(filepath.Join(proc, "self/ns/pid"))
	if err != nil {
		return "", fmt.Errorf("find out whose mounts are visible: %w", err)
	}
	if ns != hostPIDNamespace {
		return "", errors.New("cannot see the host's mounts from a PID namespace of a container's own; run it with hostPID: true")
	}
	return filepath.Join(proc, "1/mountinfo"), nil
}

// Mounted returns the paths at which kubelet has volumes of this driver mounted, read from a mountinfo file.
func Mounted(mountinfoFile string) ([]string, error) {
	f, err := os.Open(mountinfoFile)
	if err != nil {
		return nil, fmt.Errorf("look for mounted volumes: %w", err)
	}
	defer func() { _ = f.Close() }()
	infos, err := mountinfo.Read(f, func(i *mountinfo.Info) bool { return ofDriver(i.Mountpoint) })
	if err != nil {
		return nil, fmt.Errorf("look for mounted volumes in %s: %w", mountinfoFile, err)
	}
	paths := make([]string, 0, len(infos))
	for _, i := range infos {
		paths = append(paths, i.Mountpoint)
	}
	return paths, nil
}

// ofDriver reports whether kubelet mounts volumes of this driver at path:
// …/pods/<uid>/volumes/flexlvm.io~flexlvm/<volume>.
func ofDriver(path string) bool {
	dir := filepath.Dir(path)
	return filepath.Base(dir) == driverDir && strings.HasSuffix(filepath.Dir(dir), "/volumes")
}

// Refusal returns an error that names volumes that are still mounted, and what to do.
func Refusal(mounted []string) error {
	const few = 3
	list := strings.Join(mounted[:min(few, len(mounted))], ", ")
	if more := len(mounted) - few; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Errorf("%w: %s; kubelet needs the driver to unmount them: drain the node, or delete the pods that use them, and try again", ErrMounted, list)
}

// same reports whether two lstat results are of the same file.
func same(a, b unix.Stat_t) bool { return a.Dev == b.Dev && a.Ino == b.Ino }
