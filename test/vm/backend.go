package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// NodesEnv is the environment variable that forces a backend: kvm, uml, tcg or arm64.
const NodesEnv = "FLEXLVM_NODES"

// Names of backends.
const (
	KVM = "kvm" // qemu, on the processor's own virtualization
	UML = "uml" // User-Mode Linux: the guest's kernel is a process of this machine
	TCG = "tcg" // qemu, which emulates the processor
	// ARM64 is qemu emulating a processor that differs from this machine's.
	ARM64 = "arm64"
)

// Limits for a guest's boot while probing a backend. A working backend boots in about a second. A broken KVM hangs.
// On User-Mode Linux, the kernel may just have been built and the machine may still be busy.
const (
	probeLimit    = 10 * time.Second
	umlProbeLimit = time.Minute
)

// Backend runs machines, and has the images that they boot from.
type Backend struct {
	Name   string
	Reason string // why it was chosen
	Images
}

// String returns a line that names the backend and the reason for it.
func (b Backend) String() string { return fmt.Sprintf("nodes run on %s: %s", b.Name, b.Reason) }

// Program returns the process that runs a machine with this hardware.
func (b Backend) Program(h Hardware) (Program, error) {
	if b.Name == UML {
		args, files, err := umlArguments(b.Kernel, h)
		return Program{Argv: args, Env: umlEnvironment, Files: files, OneProcessor: true}, err
	}
	argv, err := qemuArguments(b.Kernel, qemuMachines[b.Name], h)
	return Program{Argv: argv}, err
}

// CreateOverlay creates an image at path that holds the changes to the raw image base, which is not changed. The
// image is the Path of a [Drive] with that Base.
func (b Backend) CreateOverlay(ctx context.Context, path, base string) error {
	if b.Name == UML {
		return nil // its kernel creates the file
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", base, path)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("create disk %s: %w: %s", path, err, out)
	}
	return nil
}

// FindBackend returns the backend for this machine: KVM if a guest really boots under it, else User-Mode Linux if
// its kernel is built or can be built, else an emulated processor. It reports builds to progress. NodesEnv forces a
// backend; if that one does not work, FindBackend fails.
func FindBackend(ctx context.Context, progress io.Writer) (Backend, error) {
	return findBackend(ctx, progress, buildUMLKernel)
}

// FindBackendAtHand is FindBackend, but never builds a kernel of User-Mode Linux: it uses one only if it is cached.
func FindBackendAtHand(ctx context.Context, progress io.Writer) (Backend, error) {
	return findBackend(ctx, progress, cachedUMLKernel)
}

// Announce finds the backend and prints it with the reason for it, before the first machine of a suite boots.
func Announce(ctx context.Context, w io.Writer) error {
	b, err := FindBackend(ctx, w)
	if err != nil {
		return err
	}
	fmt.Fprintln(w, b)
	return nil
}

type kernelFinder func(context.Context, io.Writer) (umlKernel, error)

func findBackend(ctx context.Context, progress io.Writer, find kernelFinder) (Backend, error) {
	forced := os.Getenv(NodesEnv)
	switch forced {
	case "", KVM, UML, TCG:
	case ARM64:
		return arm64Backend(ctx, progress)
	default:
		return Backend{}, fmt.Errorf("choose what nodes run on: %s=%s: use %s, %s, %s or %s", NodesEnv, forced, KVM, UML, TCG, ARM64)
	}
	images, err := BuildImages(ctx, progress)
	if err != nil {
		return Backend{}, err
	}
	var reasons []string
	for _, name := range []string{KVM, UML, TCG} {
		if forced != "" && name != forced {
			continue
		}
		b, err := tryBackend(ctx, progress, name, images, find)
		if ctx.Err() != nil {
			return Backend{}, ctx.Err()
		}
		if err == nil {
			b.Reason = strings.Join(append(reasons, b.Reason), "; ")
			return b, nil
		}
		if forced != "" {
			return Backend{}, fmt.Errorf("run nodes on %s, as %s says: %w", name, NodesEnv, err)
		}
		reasons = append(reasons, fmt.Sprintf("not on %s (%v)", name, err))
	}
	return Backend{}, errors.New(strings.Join(reasons, "; "))
}

// tryBackend returns the named backend if guests boot on it.
func tryBackend(ctx context.Context, progress io.Writer, name string, images Images, find kernelFinder) (Backend, error) {
	b := Backend{Name: name, Images: images}
	switch name {
	case TCG:
		b.Reason = "an emulated processor works everywhere"
		return b, nil
	case KVM:
		kvm, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
		if err != nil {
			return b, err
		}
		_ = kvm.Close()
		b.Reason = "a guest boots under it"
	case UML:
		kernel, err := find(ctx, progress)
		if err != nil {
			return b, err
		}
		if b.Images, err = umlImages(ctx, progress, images, kernel); err != nil {
			return b, err
		}
		b.Reason = "a guest boots on Linux " + kernel.release
	}
	return b, b.probe(ctx)
}

// probe returns an error if guests do not boot. The existence of /dev/kvm proves little: in some virtual machines
// it exists, but a stock kernel crashes under it. The result is cached until this machine reboots. A failure of
// User-Mode Linux is cached for a shorter time: the machine may have been busy, and nodes on an emulated processor
// are slow.
func (b Backend) probe(ctx context.Context) error {
	cache, err := CacheDir()
	if err != nil {
		return err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	retry := unusedFor
	switch {
	case os.Getenv(NodesEnv) == b.Name:
		retry = 0
	case b.Name == UML:
		retry = retryFailed
	}
	images := filepath.Base(filepath.Dir(b.Kernel)) + "-" + filepath.Base(filepath.Dir(b.Initrd))
	dir := filepath.Join(cache, "booted-"+b.Name+"-"+strings.TrimSpace(string(boot))+"-"+images)
	if err := probeOnce(ctx, dir, retry, b.boots); err != nil {
		return err
	}
	return prune(filepath.Join(cache, "boot*-*"), time.Now().Add(-unusedFor))
}

// errNoBoot means that no guest boots, as far as can be seen because of the backend.
var errNoBoot = errors.New("no guest boots")

// probeOnce returns the result of boots, which it calls only if the cache has no result: the folder dir means that
// a guest booted; a file beside it, valid for retry, that none did.
func probeOnce(ctx context.Context, dir string, retry time.Duration, boots func(context.Context) error) error {
	failed := dir + ".failed"
	return buildOnce(ctx, dir, nil, func(string) error {
		if info, err := os.Stat(failed); err == nil && time.Since(info.ModTime()) < retry {
			why, err := os.ReadFile(failed)
			return errors.Join(err, fmt.Errorf("%s, at %s; remove %s to try again", why, info.ModTime().Format(time.DateTime), failed))
		}
		err := boots(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err() // the probe was interrupted, so there is no result
		case errors.Is(err, errNoBoot):
			return errors.Join(err, os.WriteFile(failed, []byte(err.Error()), 0o644))
		case err != nil:
			return err
		}
		return os.RemoveAll(failed)
	})
}

// boots boots a guest. Its error is a single line.
func (b Backend) boots(ctx context.Context) error {
	limit := probeLimit
	if b.Name == UML {
		limit = umlProbeLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	m, err := prepare(ctx, Config{backend: b})
	if err != nil {
		return fmt.Errorf("prepare a guest: %w", err)
	}
	if err := errors.Join(m.Boot(ctx), m.Close()); err != nil {
		line, _, _ := strings.Cut(err.Error(), "\n")
		return fmt.Errorf("%w: %s", errNoBoot, line)
	}
	return nil
}
