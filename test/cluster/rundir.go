package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/test/built"
	"github.com/flexlvm/flexlvm/test/vm"
)

const runPrefix = "cluster-"

// runDir is the folder of one cluster. The cluster's supervisor holds a lock in it. A folder whose lock nobody
// holds is a leftover.
type runDir struct {
	path string
	lock *os.File
}

func runDirPath(name string) (string, error) {
	cache, err := vm.CacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "run", runPrefix+name), nil
}

// makeRunDir removes the folders of dead clusters, then creates and locks the folder of the named cluster.
func makeRunDir(ctx context.Context, name string) (*runDir, error) {
	path, err := runDirPath(name)
	if err != nil {
		return nil, err
	}
	parent := filepath.Dir(path)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, fmt.Errorf("make run folder: %w", err)
	}
	// Between its creation and its locking, a folder looks stale to other processes.
	unlock, err := vm.Lock(ctx, filepath.Join(parent, ".lock"), nil)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := removeStale(parent); err != nil {
		return nil, err
	}
	if err := os.Mkdir(path, 0o755); errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("start cluster: %q is running already; stop it first", name)
	} else if err != nil {
		return nil, fmt.Errorf("make run folder: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(path, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock run folder: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock run folder: %w", err)
	}
	return &runDir{path: path, lock: f}, nil
}

// running reports whether a supervisor holds the folder.
func running(path string) (bool, error) {
	f, err := os.OpenFile(filepath.Join(path, "lock"), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("check run folder: %w", err)
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	} else if err != nil {
		return false, fmt.Errorf("check run folder: %w", err)
	}
	return false, nil
}

// RemoveStale removes the folders of clusters that could not clean up.
func RemoveStale(ctx context.Context) error {
	cache, err := vm.CacheDir()
	if err != nil {
		return err
	}
	parent := filepath.Join(cache, "run")
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return fmt.Errorf("make run folder: %w", err)
	}
	unlock, err := vm.Lock(ctx, filepath.Join(parent, ".lock"), nil)
	if err != nil {
		return err
	}
	defer unlock()
	return removeStale(parent)
}

func removeStale(parent string) error {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return fmt.Errorf("look for stale run folders: %w", err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), runPrefix) {
			continue
		}
		path := filepath.Join(parent, e.Name())
		alive, err := running(path)
		if err != nil {
			return err
		}
		if alive {
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("remove stale run folder: %w", err)
		}
	}
	return nil
}

// keepLogs copies the logs of a failed cluster to a folder that outlives the cluster, and returns that folder. It
// removes the logs of old failures.
func keepLogs(dir string) (string, error) {
	parent := filepath.Join(filepath.Dir(filepath.Dir(dir)), "failed")
	kept := filepath.Join(parent, filepath.Base(dir))
	if err := os.RemoveAll(kept); err != nil {
		return "", fmt.Errorf("keep logs: %w", err)
	}
	if err := built.RemoveUnused(filepath.Join(parent, "*")); err != nil {
		return "", err
	}
	if err := os.MkdirAll(kept, 0o755); err != nil {
		return "", fmt.Errorf("keep logs: %w", err)
	}
	logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		return "", fmt.Errorf("keep logs: %w", err)
	}
	for _, log := range logs {
		if err := copyFile(filepath.Join(kept, filepath.Base(log)), log); err != nil {
			return "", fmt.Errorf("keep logs: %w", err)
		}
	}
	return kept, nil
}
