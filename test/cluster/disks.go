package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/flexlvm/flexlvm/test/built"
)

// toolsDisk returns the read-only disk that all nodes share: the Kubernetes binary and the images that every node
// imports.
func toolsDisk(ctx context.Context, binaries, images string) (string, error) {
	key := built.Key([]byte(filepath.Base(binaries)), []byte(filepath.Dir(images)))
	dir, err := built.Once(ctx, "node-tools", key, func(dir string) error {
		tree := filepath.Join(dir, "tree")
		if err := os.MkdirAll(filepath.Join(tree, "images"), 0o755); err != nil {
			return err
		}
		if err := copyFile(filepath.Join(tree, "kubernetes"), filepath.Join(binaries, "kubernetes")); err != nil {
			return err
		}
		for _, name := range []string{"kubelet", "kubectl"} {
			if err := os.Symlink("kubernetes", filepath.Join(tree, name)); err != nil {
				return err
			}
		}
		if err := copyFile(filepath.Join(tree, "images/test.tar"), images); err != nil {
			return err
		}
		if err := makeExt4(ctx, filepath.Join(dir, "disk.img"), tree); err != nil {
			return err
		}
		return os.RemoveAll(tree)
	})
	return filepath.Join(dir, "disk.img"), err
}

// imagesDisk creates the read-only disk with a cluster's image archives, in their order.
func imagesDisk(ctx context.Context, disk string, archives []string) error {
	tree := disk + ".tree"
	if err := os.Mkdir(tree, 0o755); err != nil {
		return fmt.Errorf("make images disk: %w", err)
	}
	defer os.RemoveAll(tree)
	for i, archive := range archives {
		name := filepath.Join(tree, fmt.Sprintf("%d-%s", i, filepath.Base(archive)))
		if err := copyFile(name, archive); err != nil {
			return err
		}
	}
	return makeExt4(ctx, disk, tree)
}

// makeExt4 creates a file system with the content of tree and little free space.
func makeExt4(ctx context.Context, disk, tree string) error {
	var size int64
	err := filepath.WalkDir(tree, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		size += info.Size() + 4096
		return nil
	})
	if err != nil {
		return fmt.Errorf("make disk: %w", err)
	}
	if err := makeSparse(disk, size+size/16+4<<20); err != nil {
		return err
	}
	return run(ctx, "mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d", tree, disk)
}

func makeSparse(path string, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("make disk: %w", err)
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		return fmt.Errorf("make disk: %w", err)
	}
	return nil
}

func copyFile(to, from string) error {
	src, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	if _, err := io.Copy(dst, src); err != nil {
		dst.Close()
		return fmt.Errorf("copy %s: %w", from, err)
	}
	return dst.Close()
}

// run runs a tool of this machine that prints nothing of interest unless it fails.
func run(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("run %s: not installed; test/setup.sh installs what the tests need", name)
	} else if err != nil {
		return fmt.Errorf("run %s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}
