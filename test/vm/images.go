package vm

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Images are the files that guests boot from. They are shared and read-only.
type Images struct {
	// Kernel is Debian's cloud kernel, or User-Mode Linux.
	Kernel string
	// Initrd holds every guest's process 1 and the modules needed to mount the root disk. It is not compressed, so
	// that other archives can be appended.
	Initrd string
	// NodeDisk is a raw, sparse ext4 image of the root file system, with free space.
	NodeDisk string
}

// unusedFor is how long an unused image is kept.
const unusedFor = 14 * 24 * time.Hour

// initrdSources are the sources of an initrd, beside its kernel.
var initrdSources = []string{"test/vm/guest", "test/vm/wire", "test/vm/archive.go", "test/vm/images.go", "go.mod"}

// BuildImages returns the images. If the cache has none for this source, it first builds them, which takes a minute
// or two, root, and Debian's packages. It reports builds to progress.
func BuildImages(ctx context.Context, progress io.Writer) (Images, error) {
	source, err := SourceDir()
	if err != nil {
		return Images{}, err
	}
	cache, err := CacheDir()
	if err != nil {
		return Images{}, err
	}
	onWait := func() { fmt.Fprintln(progress, "images: waiting for another process that builds them") }

	key, err := hashFiles(source, []string{"test/vm/image"})
	if err != nil {
		return Images{}, err
	}
	root := filepath.Join(cache, "rootfs-"+key)
	err = buildOnce(ctx, root, onWait, func(dir string) error {
		return buildRoot(ctx, progress, source, "test/vm/image/build.sh", dir, filepath.Join(cache, "debs"))
	})
	if err != nil {
		return Images{}, fmt.Errorf("build root file system: %w", err)
	}

	key, err = hashFiles(source, initrdSources, key, runtime.Version())
	if err != nil {
		return Images{}, err
	}
	initrd := filepath.Join(cache, "initrd-"+key)
	err = buildOnce(ctx, initrd, onWait, func(dir string) error {
		return buildInitrd(ctx, source, root, runtime.GOARCH, dir)
	})
	if err != nil {
		return Images{}, fmt.Errorf("build initrd: %w", err)
	}
	for _, kind := range []string{"rootfs-*", "initrd-*"} {
		if err := prune(filepath.Join(cache, kind), time.Now().Add(-unusedFor)); err != nil {
			return Images{}, err
		}
	}
	return Images{
		Kernel:   filepath.Join(root, "vmlinuz"),
		Initrd:   filepath.Join(initrd, "initrd"),
		NodeDisk: filepath.Join(root, "node.ext4"),
	}, nil
}

// buildRoot runs a script of the checkout that fills dir with a root disk and its kernel.
func buildRoot(ctx context.Context, progress io.Writer, source, script, dir, debs string) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("this needs root: run the same command as root once, the result is kept")
	}
	if err := runTool(ctx, progress, source, nil, filepath.Join(source, "test/setup.sh")); err != nil {
		return err
	}
	return runScript(ctx, progress, source, script, dir, debs)
}

// runScript runs a script of the checkout in a PID namespace, so that all its processes end with the first one.
func runScript(ctx context.Context, output io.Writer, source, script string, args ...string) error {
	unshared := []string{"unshare", "--fork", "--pid", "--mount-proc", "--kill-child=KILL", filepath.Join(source, script)}
	return runTool(ctx, output, source, nil, append(unshared, args...)...)
}

// umlImages returns the images of guests on User-Mode Linux: the same root disk, and an initrd with the list of the
// kernel's built-in modules instead of modules.
func umlImages(ctx context.Context, progress io.Writer, images Images, kernel umlKernel) (Images, error) {
	source, err := SourceDir()
	if err != nil {
		return Images{}, err
	}
	cache, err := CacheDir()
	if err != nil {
		return Images{}, err
	}
	initrd := strings.Replace(filepath.Dir(images.Initrd), "initrd-", "initrd-uml-"+kernel.key+"-", 1)
	onWait := func() { fmt.Fprintln(progress, "images: waiting for another process that builds them") }
	err = buildOnce(ctx, initrd, onWait, func(dir string) error {
		return packInitrd(ctx, source, runtime.GOARCH, dir, map[string]string{
			"/files/usr/lib/modules/" + kernel.release: filepath.Join(kernel.dir, "modules"),
		})
	})
	if err != nil {
		return Images{}, fmt.Errorf("build initrd: %w", err)
	}
	images.Kernel, images.Initrd = filepath.Join(kernel.dir, "linux"), filepath.Join(initrd, "initrd")
	return images, prune(filepath.Join(cache, "initrd-uml-*"), time.Now().Add(-unusedFor))
}

// buildInitrd packs process 1 with the kernel's modules.
func buildInitrd(ctx context.Context, source, root, arch, dir string) error {
	files := map[string]string{}
	modules, err := filepath.Glob(filepath.Join(root, "modules", "*.ko"))
	if err != nil {
		return err
	}
	for _, module := range modules {
		files["/modules/"+filepath.Base(module)] = module
	}
	return packInitrd(ctx, source, arch, dir, files)
}

// packInitrd compiles process 1 and packs it with other files.
func packInitrd(ctx context.Context, source, arch, dir string, files map[string]string) error {
	init := filepath.Join(dir, "init")
	err := runTool(ctx, os.Stderr, source, []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + arch, "GOFLAGS="},
		"go", "build", "-trimpath", "-ldflags", "-s -w", "-o", init, "./test/vm/guest")
	if err != nil {
		return err
	}
	files["/init"] = init
	f, err := os.Create(filepath.Join(dir, "initrd"))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := writeArchive(f, files); err != nil {
		return err
	}
	return f.Close()
}

// runTool runs a program that builds something. When ctx ends, it sends SIGTERM to the program and its children.
// The program is killed when this process dies.
func runTool(ctx context.Context, output io.Writer, dir string, env []string, args ...string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	runtime.LockOSThread() // Pdeathsig refers to this thread, not the process
	defer runtime.UnlockOSThread()
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return fmt.Errorf("run %s: %w", filepath.Base(args[0]), err)
	}
	return nil
}

// prune removes the paths that match the pattern and have not been used since.
func prune(pattern string, since time.Time) error {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return err
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil || info.ModTime().After(since) {
			continue // gone meanwhile, or in use
		}
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("remove old image: %w", err)
		}
	}
	return nil
}
