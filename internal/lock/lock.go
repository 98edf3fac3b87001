// Package lock serialises flexlvm's processes on one node.
//
// A lock is an open-file-description lock on one byte of a file, chosen by a hash of the key. So
// one file serves any number of volumes, the kernel releases the lock of a dead holder, and two
// keys that share a byte (once in 2^62) only wait for each other.
package lock

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// A Dir holds lock files.
type Dir string

// ErrBusy: the lock was not free before the deadline.
var ErrBusy = errors.New("another call holds the lock")

// The poll interval doubles from firstPoll to maxPoll: the common wait is for a call of a few
// hundred milliseconds.
const (
	firstPoll = 2 * time.Millisecond
	maxPoll   = 50 * time.Millisecond
)

// yieldTime is longer than any poll interval, so that a waiting caller acquires the lock.
const yieldTime = 2 * maxPoll

// Yield lets others acquire a lock that the caller has released and is about to acquire again.
// There is no queue: without a pause the caller would nearly always be first.
func Yield(ctx context.Context) error {
	pause := time.NewTimer(yieldTime)
	defer pause.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-pause.C:
		return nil
	}
}

// Acquire waits until it holds the lock on key in the named file, or ctx ends. The caller must call
// release; the death of the process releases the lock, too.
func (d Dir) Acquire(ctx context.Context, file, key string) (release func(), err error) {
	f, err := d.checked(file, key)
	if err != nil {
		return nil, err
	}
	for poll := firstPoll; ; poll = min(2*poll, maxPoll) {
		held, err := try(f, key)
		if held {
			return func() { _ = f.Close() }, nil
		}
		if err != nil {
			_ = f.Close()
			return nil, err
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w (%w)", key, ErrBusy, context.Cause(ctx))
		case <-time.After(poll):
		}
	}
}

// Try is Acquire without a wait: acquired is false if the lock is held.
func (d Dir) Try(file, key string) (release func(), acquired bool, err error) {
	f, err := d.checked(file, key)
	if err != nil {
		return nil, false, err
	}
	if acquired, err = try(f, key); !acquired {
		_ = f.Close()
		return nil, false, err
	}
	return func() { _ = f.Close() }, true, nil
}

// Held reports whether the lock on key is held, without acquiring it.
func (d Dir) Held(file, key string) (bool, error) {
	f, err := d.checked(file, key)
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	probe := byteOf(key)
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &probe); err != nil {
		return false, fmt.Errorf("check lock %s in %s: %w", key, f.Name(), err)
	}
	return probe.Type != unix.F_UNLCK, nil
}

// checked opens a lock file in a directory that only this user can write to.
func (d Dir) checked(file, key string) (*os.File, error) {
	f, err := d.open(file)
	if err == nil {
		if err = d.check(); err != nil {
			_ = f.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", key, err)
	}
	return f, nil
}

func (d Dir) open(file string) (*os.File, error) {
	flags := os.O_RDWR | os.O_CREATE | unix.O_NOFOLLOW
	f, err := os.OpenFile(filepath.Join(string(d), file), flags, 0o600)
	if !errors.Is(err, os.ErrNotExist) {
		return f, err
	}
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return nil, err
	}
	return os.OpenFile(filepath.Join(string(d), file), flags, 0o600)
}

// check rejects a directory that others own or can write to: /run/lock is world-writable on some
// systems, and whoever creates the directory first after a boot could hold flexlvm's locks forever.
func (d Dir) check() error {
	var st unix.Stat_t
	if err := unix.Lstat(string(d), &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return fmt.Errorf("%s is not a directory that only user %d can write to; remove it", string(d), os.Geteuid())
	}
	return nil
}

// try acquires the lock, and returns false without an error if it is held.
func try(f *os.File, key string) (bool, error) {
	wanted := byteOf(key)
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &wanted)
	switch {
	case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("lock %s in %s: %w", key, f.Name(), err)
	}
	return true, nil
}

// byteOf returns a lock on the byte of a key.
func byteOf(key string) unix.Flock_t {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key))
	return unix.Flock_t{Type: unix.F_WRLCK, Whence: 0, Start: int64(h.Sum64() >> 2), Len: 1}
}
