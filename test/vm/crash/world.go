//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/test/vm/csinode"
)

const (
	group     = volume.Group("flexlvm")
	pool      = volume.Name("thinpool")
	cluster   = "6e2c0b0a-92a7-4b52-a9f5-2f7b3f1f8a01"
	callLimit = time.Minute
	// sources holds datasets. It is in memory and survives every power cut.
	sources = "/crash-sources"
)

// A world is a node as its callers see it: the engine, and the pods' volume directories.
type world struct {
	context.Context
	dir    string
	engine *node.Engine
	// behind is the driver's engine, which leaves settling a volume to later.
	behind *node.Engine
	omit   string
	// door is how volumes are mounted, unmounted and grown; calls counts these calls.
	door  string
	calls int
	// drivers are the started CSI drivers of the engines.
	drivers map[*node.Engine]*csinode.Node
}

// The doors. The FlexVolume driver and the node daemon both call the engine.
const (
	doorFlex = "flex"
	doorCSI  = "csi"
	doorBoth = "both" // in turns
)

// byCSI returns the CSI driver of an engine if this call goes through CSI, or nil.
func (w *world) byCSI(e *node.Engine) (*csinode.Node, error) {
	w.calls++
	if w.door == doorFlex || w.door == doorBoth && w.calls%2 == 1 {
		return nil, nil
	}
	if d := w.drivers[e]; d != nil {
		return d, nil
	}
	d, err := csinode.Start(w, fmt.Sprintf("%s/csi-%d.sock", w.dir, len(w.drivers)), e)
	if err == nil {
		w.drivers[e] = d
	}
	return d, err
}

// close stops the CSI drivers.
func (w *world) close() error {
	var all []error
	for _, d := range w.drivers {
		all = append(all, d.Close())
	}
	return errors.Join(all...)
}

// newWorld returns a world with its records and pods in a directory and its volumes mounted through a door. after
// is called after each step of the engine.
func newWorld(ctx context.Context, dir, door string, after func(step string)) (*world, error) {
	w := &world{Context: ctx, dir: dir, door: door, drivers: map[*node.Engine]*csinode.Node{}}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	log := quiet()
	cfg := node.Config{StateDir: dir + "/state", LockDir: "/run/lock/crash", After: after}
	var err error
	if w.engine, err = node.New(cfg, command.New("", log)); err != nil {
		return nil, err
	}
	cfg.Settle = func(volume.Group, volume.Name) {}
	w.behind, err = node.New(cfg, command.New("", log))
	return w, err
}

func refOf(s volume.Spec) node.Ref {
	return node.Ref{Group: s.Group, Name: s.Name, Cluster: s.Cluster, Kind: s.Kind}
}

func (w *world) target(n volume.Name) string { return filepath.Join(w.dir, "pods", string(n)) }

// mount mounts a volume as kubelet does.
func (w *world) mount(e *node.Engine, s volume.Spec) error {
	ctx, cancel := bounded(w)
	defer cancel()
	switch driver, err := w.byCSI(e); {
	case err != nil:
		return err
	case driver != nil:
		return driver.Mount(ctx, s, w.target(s.Name))
	}
	if err := w.makeTarget(s); err != nil {
		return err
	}
	return e.Mount(ctx, s, node.MountRequest{Target: w.target(s.Name)})
}

// makeTarget creates the directory to mount a volume on, or the file for a device.
func (w *world) makeTarget(s volume.Spec) error {
	if s.FSType != volume.Raw {
		return os.MkdirAll(w.target(s.Name), 0o750)
	}
	if err := os.MkdirAll(w.dir+"/pods", 0o750); err != nil {
		return err
	}
	f, err := os.OpenFile(w.target(s.Name), os.O_CREATE|os.O_RDONLY, 0o640)
	if err != nil {
		return err
	}
	return f.Close()
}

// unmountAll unmounts everything in the pods and closes the mappings of devices.
func (w *world) unmountAll() error {
	targets, err := filepath.Glob(w.dir + "/pods/*")
	for _, target := range targets {
		for {
			if err := unix.Unmount(target, 0); errors.Is(err, unix.EINVAL) {
				break // nothing is mounted there
			} else if err != nil {
				return fmt.Errorf("unmount %s: %w", target, err)
			}
		}
	}
	return errors.Join(err, w.engine.CloseUnused(w))
}

func (w *world) unmount(s volume.Spec) error {
	ctx, cancel := bounded(w)
	defer cancel()
	switch driver, err := w.byCSI(w.engine); {
	case err != nil:
		return err
	case driver != nil:
		return driver.Unmount(ctx, s, w.target(s.Name))
	}
	return w.engine.Unmount(ctx, w.target(s.Name))
}

// expand grows a volume. Through CSI, it grows online.
func (w *world) expand(s volume.Spec, size volume.Bytes) error {
	driver, err := w.byCSI(w.engine)
	if err != nil {
		return err
	}
	if driver != nil {
		if err := w.mount(w.engine, s); err != nil {
			return err
		}
	}
	ctx, cancel := bounded(w)
	defer cancel()
	if driver != nil {
		return driver.Expand(ctx, s, w.target(s.Name), size)
	}
	return w.engine.Expand(ctx, s, size)
}

// release ends a volume's pods and releases the volume.
func (w *world) release(s volume.Spec, d volume.Disposal) error {
	if err := w.unmount(s); err != nil {
		return err
	}
	ctx, cancel := bounded(w)
	defer cancel()
	return w.engine.Release(ctx, refOf(s), volume.Unreferenced, d)
}

func (w *world) remove(s volume.Spec) error {
	ctx, cancel := bounded(w)
	defer cancel()
	return w.engine.Remove(ctx, refOf(s))
}

func (w *world) restate(s volume.Spec, to volume.State) error {
	ctx, cancel := bounded(w)
	defer cancel()
	_, err := w.engine.SetState(ctx, s.Group, s.Name, to)
	return err
}

// write writes a file as a careful program does: it appears under its name atomically.
func (w *world) write(s volume.Spec, file string, size int64) (err error) {
	dir := w.target(s.Name)
	if s.FSType == volume.Raw {
		return writeDevice(dir, file, size)
	}
	name := filepath.Join(dir, file)
	f, err := os.Create(name + ".new")
	if err != nil {
		return err
	}
	_, err = f.Write(content(file, size))
	if w.omit != omitFsync {
		err = errors.Join(err, f.Sync())
	}
	if err := errors.Join(err, f.Close(), os.Rename(name+".new", name)); err != nil || w.omit == omitFsync {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// noise writes a file that is not promised.
func (w *world) noise(n volume.Name) error {
	return os.WriteFile(filepath.Join(w.target(n), "noise"), content("noise", 3<<20), 0o600)
}

// makeSource creates a dataset of so many files.
func makeSource(files int) error {
	dir := source(files)
	if err := os.MkdirAll(dir+"/many", 0o755); err != nil {
		return err
	}
	for i := range files - 1 {
		name := fmt.Sprintf("many/%03d", i)
		if err := os.WriteFile(filepath.Join(dir, name), content(name, 6000), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(dir+"/large", content("large", 2<<20), 0o644)
}

func source(files int) string { return fmt.Sprintf("%s/%d", sources, files) }

// fetch loads that dataset, as its job does.
func (w *world) fetch(n volume.Name, files int) error {
	ctx, cancel := bounded(w)
	defer cancel()
	out, err := exec.CommandContext(ctx, "/fetch", "--progress", "none", "file://"+source(files)+"/", w.target(n)+"/set").CombinedOutput()
	if err != nil {
		return fmt.Errorf("fetch: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// size returns a volume's size as its pod sees it.
func (w *world) size(s volume.Spec) (volume.Bytes, error) {
	if s.FSType == volume.Raw {
		n, err := sectors(w.target(s.Name))
		return volume.Bytes(n) * 512, err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(w.target(s.Name), &st); err != nil {
		return 0, err
	}
	return volume.Bytes(st.Blocks) * volume.Bytes(st.Bsize), nil
}

// lookInto checks the content of a snapshot, as a full copy of it would read it.
func (w *world) lookInto(p promise) error {
	if _, err := sh("lvchange --yes -ay %s/%s", group, p.spec.Name); err != nil {
		return err
	}
	device := fmt.Sprintf("/dev/%s/%s", group, p.spec.Name)
	if p.spec.FSType == volume.Raw {
		return checkDevice(device, p.size, p.files)
	}
	options := "nouuid"
	if p.spec.FSType == volume.Ext4 {
		options = "rw"
	}
	dir := w.target(p.spec.Name)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	if _, err := sh("mount -o %s %s %s", options, device, dir); err != nil {
		return err
	}
	return errors.Join(checkFiles(dir, p), unix.Unmount(dir, 0))
}
