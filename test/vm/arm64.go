package vm

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
)

// arm64Backend returns an emulated arm64 processor with images of its own. It is used only if NodesEnv selects it,
// because programs that run in its guests must be built for arm64.
func arm64Backend(ctx context.Context, progress io.Writer) (Backend, error) {
	images, err := arm64Images(ctx, progress)
	if err != nil {
		return Backend{}, fmt.Errorf("run nodes on %s, as %s says: %w", ARM64, NodesEnv, err)
	}
	return Backend{Name: ARM64, Reason: "an emulated processor works everywhere", Images: images}, nil
}

// arm64Images returns the images of arm64 guests, and builds them if the cache has none.
func arm64Images(ctx context.Context, progress io.Writer) (Images, error) {
	source, err := SourceDir()
	if err != nil {
		return Images{}, err
	}
	cache, err := CacheDir()
	if err != nil {
		return Images{}, err
	}
	key, err := hashFiles(source, []string{"test/vm/arm64", "test/vm/image/initrd-modules"})
	if err != nil {
		return Images{}, err
	}
	onWait := func() { fmt.Fprintln(progress, "images: waiting for another process that builds them") }
	root := filepath.Join(cache, "rootfs-arm64-"+key)
	err = buildOnce(ctx, root, onWait, func(dir string) error {
		return buildRoot(ctx, progress, source, "test/vm/arm64/build.sh", dir, filepath.Join(cache, "debs-arm64"))
	})
	if err != nil {
		return Images{}, fmt.Errorf("build root file system: %w", err)
	}
	if key, err = hashFiles(source, initrdSources, key, runtime.Version()); err != nil {
		return Images{}, err
	}
	initrd := filepath.Join(cache, "initrd-arm64-"+key)
	err = buildOnce(ctx, initrd, onWait, func(dir string) error { return buildInitrd(ctx, source, root, "arm64", dir) })
	if err != nil {
		return Images{}, fmt.Errorf("build initrd: %w", err)
	}
	return Images{
		Kernel:   filepath.Join(root, "vmlinuz"),
		Initrd:   filepath.Join(initrd, "initrd"),
		NodeDisk: filepath.Join(root, "node.ext4"),
	}, nil
}
