package vm

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CacheEnv is the environment variable for the cache folder, by default .cache in the checkout. A relative path is
// relative to the checkout's root, as for make: each package's tests run in a folder of their own.
const CacheEnv = "FLEXLVM_CACHE"

const moduleLine = "module github.com/flexlvm/flexlvm\n"

// SourceDir returns the root of the checkout that contains the working directory.
func SourceDir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for start := dir; ; dir = filepath.Dir(dir) {
		b, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(b), moduleLine) {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("find checkout: %s is not inside of one; change to it first", start)
		}
	}
}

// CacheDir returns the folder for files that are expensive to build. It creates the folder.
func CacheDir() (string, error) {
	dir := cmp.Or(os.Getenv(CacheEnv), ".cache")
	if !filepath.IsAbs(dir) {
		source, err := SourceDir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(source, dir)
	}
	return dir, os.MkdirAll(dir, 0o755)
}

// Lock acquires the lock file at path, waiting as long as ctx allows, and returns a function that releases it. If
// it has to wait, it calls onWait once.
func Lock(ctx context.Context, path string, onWait func()) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for waited := false; ; waited = true {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if !waited && onWait != nil {
			onWait()
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// hashFiles returns a short key of the words and of the names and contents of all files under paths.
func hashFiles(base string, paths []string, words ...string) (string, error) {
	h := sha256.New()
	for _, word := range words {
		fmt.Fprintf(h, "%q\n", word)
	}
	for _, path := range paths {
		err := filepath.WalkDir(filepath.Join(base, path), func(file string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			b, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			name, err := filepath.Rel(base, file)
			if err != nil {
				return err
			}
			fmt.Fprintf(h, "%q %x\n", name, sha256.Sum256(b))
			return nil
		})
		if err != nil {
			return "", fmt.Errorf("hash %s: %w", path, err)
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:12], nil
}

// buildOnce creates the folder at path by calling build with a temporary folder beside it, which is renamed at the
// end, so that the folder is complete or absent. If several processes need it, one builds and the others wait.
func buildOnce(ctx context.Context, path string, onWait func(), build func(dir string) error) error {
	if _, err := os.Stat(path); err == nil {
		now := time.Now()
		return os.Chtimes(path, now, now) // in use: see prune
	}
	unlock, err := Lock(ctx, path+".lock", onWait)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return nil // another process has built it meanwhile
	}
	dir := path + ".tmp"
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := build(dir); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	return os.Rename(dir, path)
}
