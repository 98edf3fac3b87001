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
	// ARM64 is qemu that emulates another processor than this machine's.
	ARM64 = "arm64"
)

// How long a guest may take to boot where a backend is tried. It takes about a second where it works.
// KVM that does not work hangs; User-Mode Linux has just been built, and the machine may be busy still.
const (
	probeLimit    = 10 * time.Second
	umlProbeLimit = time.Minute
)

// Backend is what runs machines, with the images that they boot from there.
type Backend struct {
	Name   string
	Reason string // why it was chosen
	Images
}

// String is the line that says what nodes run on.
func (b Backend) String() string { return fmt.Sprintf("nodes run on %s: %s", b.Name, b.Reason) }

// Program returns the process that is a machine of this hardware.
func (b Backend) Program(h Hardware) (Program, error) {
	if b.Name == UML {
		args, files, err := umlArguments(b.Kernel, h)
		return Program{Argv: args, Env: umlEnvironment, Files: files, OneProcessor: true}, err
	}
	argv, err := qemuArguments(b.Kernel, qemuMachines[b.Name], h)
	return Program{Argv: argv}, err
}

// CreateOverlay makes an image at path that holds the changes to the raw image base,
// which stays as it is. It is the Path of a [Drive] with that Base.
func (b Backend) CreateOverlay(ctx context.Context, path, base string) error {
	if b.Name == UML {
		return nil // its kernel makes the file
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", base, path)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("create disk %s: %w: %s", path, err, out)
	}
	return nil
}

// FindBackend returns what runs machines here: KVM where a guest really boots under
// it, else User-Mode Linux where its kernel was built or can be, else an emulated
// processor. What it builds is told to progress. NodesEnv forces one, or fails.
func FindBackend(ctx context.Context, progress io.Writer) (Backend, error) {
	return findBackend(ctx, progress, buildUMLKernel)
}

// FindBackendAtHand is FindBackend without the wait for a kernel of User-Mode Linux
// that the cache does not have.
func FindBackendAtHand(ctx context.Context, progress io.Writer) (Backend, error) {
	return findBackend(ctx, progress, cachedUMLKernel)
}

// Announce finds the backend and says what it is and why, before the first machine of a suite boots.
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

// tryBackend returns the backend of that name if guests boot on it.
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

// probe reports what keeps guests from booting. That /dev/kvm exists says little: in some virtual
// machines it is there and a stock kernel dies in it. The answer is kept until this machine is booted
// again. That none boots on User-Mode Linux is kept for a shorter time: the machine may have been busy, and
// nodes on an emulated processor are slow.
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

// errNoBoot says that no guest boots: the backend's fault, as far as can be seen.
var errNoBoot = errors.New("no guest boots")

// probeOnce reports what boots does, which it calls only where the cache has no answer: the folder
// dir says that a guest booted, and a file beside it, for as long as retry, that none did.
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
			return ctx.Err() // the probe was cut short and says nothing
		case errors.Is(err, errNoBoot):
			return errors.Join(err, os.WriteFile(failed, []byte(err.Error()), 0o644))
		case err != nil:
			return err
		}
		return os.RemoveAll(failed)
	})
}

// boots boots a guest. The error is a line.
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
