// Package jobvolume is for the workers of a distributed job that share one volume, or have one
// each: it finds the job's directory, and provides each worker with its own directory, created on
// first use, and a log file. If each worker has its own volume, the job's directory is on it and
// belongs to this worker alone.
//
// The volume is mounted in every worker, at /persistent unless the environment variable
// FLEXLVM_JOB_DIR names another directory. That directory only has to exist; /persistent counts
// only if a volume is mounted there. It contains:
//
//	/persistent              the job's directory, which all workers share
//	/persistent/worker-3     the directory of worker 3
//	/persistent/logs         log files that outlive the pods
//	/persistent/logs/worker-3.log
//
// Everything here may be called by any number of workers and goroutines at the same time.
// Nothing is ever removed.
package jobvolume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

const (
	// DefaultDir is where the volume is mounted.
	DefaultDir = "/persistent"
	// EnvDir is the environment variable that overrides DefaultDir.
	EnvDir = "FLEXLVM_JOB_DIR"
	// EnvSize is the environment variable with the size of each worker's share of the volume, or
	// of its own volume, in bytes.
	EnvSize = "FLEXLVM_WORKER_SIZE"
	// EnvWorker is the environment variable with the worker's number; Kubernetes sets
	// it in the pods of an Indexed Job.
	EnvWorker = "JOB_COMPLETION_INDEX"
)

// ErrNoVolume means that the worker has no volume: the job was started without one, or
// the volume is mounted elsewhere.
var ErrNoVolume = errors.New("there is no volume")

// A Volume is the shared volume of a job as one worker sees it. The zero value is not
// usable; call New or FromEnvironment.
type Volume struct {
	dir     string
	worker  int
	mounted bool // dir must be a mount point
}

// New returns the volume that is mounted at dir, an absolute path, for the worker of that
// number, from 0. It does not access dir yet.
func New(dir string, worker int) (Volume, error) {
	if !filepath.IsAbs(dir) {
		return Volume{}, fmt.Errorf("job volume: directory %q is not an absolute path", dir)
	}
	if worker < 0 {
		return Volume{}, fmt.Errorf("job volume: worker %d is less than 0", worker)
	}
	return Volume{dir: filepath.Clean(dir), worker: worker}, nil
}

// FromEnvironment returns the volume of this pod: at $FLEXLVM_JOB_DIR, or /persistent if that is not set, for
// worker $JOB_COMPLETION_INDEX. At /persistent a volume has to be mounted: an image may have such a directory
// of its own.
func FromEnvironment() (Volume, error) {
	index := os.Getenv(EnvWorker)
	worker, err := strconv.Atoi(index)
	if err != nil {
		return Volume{}, fmt.Errorf("job volume: %s is %q; it must be the worker's number, which Kubernetes sets in the pods of an Indexed Job", EnvWorker, index)
	}
	dir := os.Getenv(EnvDir)
	if dir != "" {
		return New(dir, worker)
	}
	v, err := New(DefaultDir, worker)
	v.mounted = err == nil
	return v, err
}

// Worker returns the number of this worker.
func (v Volume) Worker() int { return v.worker }

// JobDirPath returns the path of the job's directory, whether it exists or not.
func (v Volume) JobDirPath() string { return v.dir }

// WorkerDirPath returns the path of this worker's directory, whether it exists or not.
func (v Volume) WorkerDirPath() string { return filepath.Join(v.dir, v.name()) }

// LogFileName returns the path of this worker's log file, whether it exists or not.
func (v Volume) LogFileName() string { return filepath.Join(v.dir, "logs", v.name()+".log") }

func (v Volume) name() string { return "worker-" + strconv.Itoa(v.worker) }

// JobDirExists reports whether the job's directory exists. An error means that this is unknown, for example
// because the volume's server does not answer.
func (v Volume) JobDirExists() (bool, error) {
	there, err := isDir(v.dir)
	if err != nil || !there || !v.mounted {
		return there, err
	}
	return isMounted(v.dir)
}

// WorkerDirExists reports whether this worker's directory has been created, by this process or by an earlier
// one.
func (v Volume) WorkerDirExists() (bool, error) { return isDir(v.WorkerDirPath()) }

// JobDir returns the path of the job's directory, which exists. If it does not, the error
// wraps ErrNoVolume.
func (v Volume) JobDir() (string, error) {
	there, err := v.JobDirExists()
	if err != nil {
		return "", err
	}
	if !there {
		return "", fmt.Errorf("job volume: %w at %s: check that the job has a volume that is mounted there, and that %s names its directory", ErrNoVolume, v.dir, EnvDir)
	}
	return v.dir, nil
}

// WorkerDir returns the path of this worker's directory, and creates it if necessary. If there is no volume to
// create it in, the error wraps ErrNoVolume: a directory in the container itself would be lost with it.
func (v Volume) WorkerDir() (string, error) { return v.mkdirIn(v.name()) }

// LogFile returns LogFileName, and creates the directory of the log files if necessary. It does not create the
// file.
func (v Volume) LogFile() (string, error) {
	if _, err := v.mkdirIn("logs"); err != nil {
		return "", err
	}
	return v.LogFileName(), nil
}

// OpenLog opens this worker's log file for appending, so that a restarted worker
// continues it.
func (v Volume) OpenLog() (*os.File, error) {
	name, err := v.LogFile()
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return nil, fmt.Errorf("job volume: %w", err)
	}
	return f, nil
}

// mkdirIn creates a directory in the job's directory and returns its path. Other workers may create it at the
// same time.
func (v Volume) mkdirIn(name string) (string, error) {
	dir, err := v.JobDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	if err := os.Mkdir(path, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("job volume: %w", err)
	}
	there, err := isDir(path)
	if err == nil && !there {
		err = fmt.Errorf("job volume: %s was removed while it was being created", path)
	}
	return path, err
}

// isMounted reports whether a directory is on another file system than its parent.
func isMounted(dir string) (bool, error) {
	var own, parent syscall.Stat_t
	err := syscall.Stat(dir, &own)
	if err == nil {
		err = syscall.Stat(filepath.Dir(dir), &parent)
	}
	if err != nil {
		return false, fmt.Errorf("job volume: check whether a volume is mounted at %s: %w", dir, err)
	}
	return own.Dev != parent.Dev, nil
}

func isDir(path string) (bool, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("job volume: %w", err)
	case !info.IsDir():
		return false, fmt.Errorf("job volume: %s is not a directory", path)
	}
	return true, nil
}
