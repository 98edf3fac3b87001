// Package install installs the driver where kubelet expects it, and uninstalls it.
//
// kubelet watches the driver's directory and calls the driver on every change to a name in it that does not
// begin with a dot. So the binary appears under its name atomically, no other file is left in that directory,
// and a correct binary is not touched.
package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/durable"
	"github.com/flexlvm/flexlvm/internal/pause"
	"github.com/flexlvm/flexlvm/internal/version"
)

const (
	// DefaultPluginDir is kubelet's default for --volume-plugin-dir.
	DefaultPluginDir = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec"

	// driverDir is the driver's name, flexlvm.io/flexlvm, in kubelet's spelling as a directory. The executable
	// has the part after the tilde.
	driverDir  = "flexlvm.io~flexlvm"
	driverFile = "flexlvm"
	tempFile   = ".flexlvm.tmp"

	mode = 0o755
)

// A Place is where a driver is, or will be, installed.
type Place struct {
	pluginDir string
}

// At returns the place of the driver in kubelet's plugin directory, which must be
// absolute.
func At(pluginDir string) (Place, error) {
	if !filepath.IsAbs(pluginDir) {
		return Place{}, fmt.Errorf("plugin directory %q is not absolute; give the directory of kubelet's --volume-plugin-dir", pluginDir)
	}
	return Place{pluginDir: filepath.Clean(pluginDir)}, nil
}

// PluginDir returns the directory that kubelet watches.
func (p Place) PluginDir() string { return p.pluginDir }

// Dir returns the driver's own directory.
func (p Place) Dir() string { return filepath.Join(p.pluginDir, driverDir) }

// Driver returns the path of the executable.
func (p Place) Driver() string { return filepath.Join(p.Dir(), driverFile) }

func (p Place) temp() string { return filepath.Join(p.Dir(), tempFile) }

// Install makes the driver a copy of binary. changed is false if it already was one; kubelet then notices
// nothing. With an error, changed is true if the driver's file may have been replaced.
//
// Killed at any point, Install leaves at most a file whose name begins with a dot, which kubelet ignores and
// the next Install removes.
func (p Place) Install(ctx context.Context, binary string) (changed bool, err error) {
	nothing := func() error { return nil }
	return p.install(ctx, binary, nothing, nothing)
}

// install is Install with two hooks: it calls may before it changes anything and returns its error, and calls
// placed after it has, or may have, replaced the driver. No other installer changes the driver meanwhile.
func (p Place) install(ctx context.Context, binary string, may, placed func() error) (changed bool, err error) {
	source, err := os.Open(binary)
	if err != nil {
		return false, fmt.Errorf("install the driver: %w", err)
	}
	defer func() { _ = source.Close() }()
	if err := os.MkdirAll(p.Dir(), 0o755); err != nil {
		return false, fmt.Errorf("install the driver: %w; is the plugin directory writable, and mounted into this container?", err)
	}
	release, err := p.lock(ctx)
	if err != nil {
		return false, err
	}
	defer release()
	if err := removeStale(p.temp()); err != nil {
		return false, err
	}
	if same, err := p.holds(source); err != nil || same {
		return false, err
	}
	if err := may(); err != nil {
		return false, err
	}
	if err = p.replace(source); err != nil {
		_ = os.Remove(p.temp())
		return true, errors.Join(err, placed())
	}
	same, err := p.holds(source)
	if err == nil && !same {
		err = fmt.Errorf("verify %s: it does not hold what was written; check the disk it is on", p.Driver())
	}
	return true, errors.Join(err, placed())
}

// Report returns a line that describes what Install did.
func (p Place) Report(changed bool) string {
	what := "is installed already"
	if changed {
		what = "installed"
	}
	return fmt.Sprintf("flexlvm %s %s: %s", version.String, what, p.Driver())
}

// lock excludes other installers on the node. It locks the directory itself, so no lock file is needed, and the
// kernel releases the lock when its holder exits.
func (p Place) lock(ctx context.Context) (release func(), err error) {
	dir, err := os.Open(p.Dir())
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", p.Dir(), err)
	}
	for {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = dir.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			_ = dir.Close()
			return nil, fmt.Errorf("lock %s: %w", p.Dir(), err)
		}
		if err := pause.For(ctx, 50*time.Millisecond); err != nil {
			_ = dir.Close()
			return nil, fmt.Errorf("lock %s: another installer holds it: %w", p.Dir(), err)
		}
	}
}

func removeStale(temp string) error {
	if err := os.Remove(temp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove what an earlier installation left: %w", err)
	}
	return nil
}

// holds reports whether the driver is a regular file with the content of source and the right mode.
func (p Place) holds(source *os.File) (bool, error) {
	info, err := os.Lstat(p.Driver())
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("check the driver: %w", err)
	}
	if info.IsDir() {
		return false, fmt.Errorf("check the driver: %s is a directory; remove it", p.Driver())
	}
	want, err := source.Stat()
	if err != nil {
		return false, fmt.Errorf("check %s: %w", source.Name(), err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm() != mode || info.Size() != want.Size() {
		return false, nil
	}
	return sameContent(p.Driver(), source)
}

func sameContent(path string, source *os.File) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, fmt.Errorf("check the driver: %w", err)
	}
	defer func() { _ = f.Close() }()
	const chunk = 32 << 10 // keeps the memory of the process that checks the driver small
	a, b := make([]byte, chunk), make([]byte, chunk)
	for at := int64(0); ; at += chunk {
		n, err := readChunk(f, a, at)
		if err != nil {
			return false, fmt.Errorf("read %s: %w", path, err)
		}
		m, err := readChunk(source, b, at)
		if err != nil {
			return false, fmt.Errorf("read %s: %w", source.Name(), err)
		}
		if !bytes.Equal(a[:n], b[:m]) {
			return false, nil
		}
		if n < chunk {
			return true, nil
		}
	}
}

func readChunk(f *os.File, buf []byte, at int64) (int, error) {
	n, err := f.ReadAt(buf, at)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// replace writes source beside the driver and renames it over the driver. A driver that is running keeps its
// own file.
func (p Place) replace(source *os.File) error {
	temp, err := os.OpenFile(p.temp(), os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return fmt.Errorf("write the driver: %w", err)
	}
	err = fill(temp, source)
	if cerr := temp.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("write the driver: %w", err)
	}
	if err := os.Rename(p.temp(), p.Driver()); err != nil {
		return fmt.Errorf("put the driver in place: %w", err)
	}
	return durable.Sync(p.Dir(), p.pluginDir) // the directory may be new as well
}

func fill(temp, source *os.File) error {
	if err := temp.Chmod(mode); err != nil { // independent of the umask
		return err
	}
	info, err := source.Stat()
	if err != nil {
		return err
	}
	if _, err := io.Copy(temp, io.NewSectionReader(source, 0, info.Size())); err != nil {
		return err
	}
	return temp.Sync()
}
