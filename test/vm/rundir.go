package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// RunDir is a folder for the files of a running machine. Remove removes it. If its owner dies first, the next
// NewRunDir does.
type RunDir struct {
	Path string
	lock *os.File // held while the owner lives
}

const ownerFile = "owner"

// NewRunDir creates a folder $cache/run/<kind>-<pid>-<random>, and removes the folders of that kind whose owners
// are gone.
func NewRunDir(ctx context.Context, kind string) (*RunDir, error) {
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	base := filepath.Join(cache, "run")
	if err := os.MkdirAll(base, 0o755); err != nil {
		return nil, err
	}
	// The lock keeps a new folder from being mistaken for an abandoned one before its owner has locked it.
	unlock, err := Lock(ctx, filepath.Join(cache, "run.lock"), nil)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := removeAbandoned(filepath.Join(base, kind+"-*")); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(base, fmt.Sprintf("%s-%d-", kind, os.Getpid()))
	if err != nil {
		return nil, err
	}
	lock, err := own(dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &RunDir{Path: dir, lock: lock}, nil
}

// Remove removes the folder and its content. What marks its owner as alive is removed last, or another process would
// take the folder for an abandoned one and remove it at the same time.
func (r *RunDir) Remove() error {
	content, err := filepath.Glob(filepath.Join(r.Path, "*"))
	for _, path := range content {
		if filepath.Base(path) != ownerFile {
			err = errors.Join(err, os.RemoveAll(path))
		}
	}
	return errors.Join(err, os.RemoveAll(r.Path), r.lock.Close())
}

// own acquires the lock that marks a folder's owner as alive. The kernel releases it when the owner ends, for any
// reason. A process ID would not do, because another process may have reused it.
func own(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, ownerFile), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func removeAbandoned(pattern string) error {
	dirs, err := filepath.Glob(pattern)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		lock, err := own(dir)
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, os.ErrNotExist) {
			continue // its owner lives, or has just removed it
		}
		if err != nil {
			return fmt.Errorf("look for the owner of %s: %w", dir, err)
		}
		if err := errors.Join(os.RemoveAll(dir), lock.Close()); err != nil {
			return fmt.Errorf("remove what a dead process left: %w", err)
		}
	}
	return nil
}
