package fetch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// RunVersions is Run for a directory, root, that holds versions of what config selects; see
// protocol.VersionsDir. config.Dest is root or below it, and determines where the data are in each
// version.
//
// The first version is current from the beginning. Once a version is complete it never changes: with
// config.Sync another is created beside it, from hard links to the files that are unchanged in the
// source, and from newly fetched files. It becomes current when it is complete and nothing was refused.
// If the source changes meanwhile, that is an error. Killed at any moment, it leaves the current
// version whole, and the next run continues the version that was begun.
//
// A directory that Run has filled stays as it is, and Run works on it.
func RunVersions(ctx context.Context, root string, config Config, progress *Progress) ([]Refusal, error) {
	v, err := openVersions(root, config.Dest)
	if err == nil && v == nil {
		return Run(ctx, config, progress)
	}
	var refused []Refusal
	if err == nil {
		defer v.close()
		refused, err = v.run(ctx, config, progress)
	}
	if err != nil {
		err = failed(err)
		var e *store.Error
		progress.Fail(err.Error(), errors.As(err, &e) && e.Retryable)
	}
	return refused, err
}

// CurrentVersion returns the directory of the current version's data, or dest if there are no versions.
func CurrentVersion(root, dest string) (string, error) {
	dir, err := os.OpenRoot(root)
	if err != nil {
		return "", fmt.Errorf("open directory: %w", err)
	}
	defer func() { _ = dir.Close() }() // it was only read
	v := &versions{dir: root, root: dir}
	if err := v.read(dest); err != nil || v.current == 0 {
		return dest, err
	}
	return filepath.Join(root, v.data(v.current)), nil
}

// versions are the versions in a directory.
type versions struct {
	dir     string
	root    *os.Root
	lock    *os.File
	below   string // path of the data in each version
	current int    // 0: there is none yet
}

// openVersions returns nil if the directory holds data that belong to no version.
func openVersions(root, dest string) (v *versions, err error) {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, fmt.Errorf("create destination: %w", err)
	}
	v = &versions{dir: root}
	if v.root, err = os.OpenRoot(root); err != nil {
		return nil, fmt.Errorf("open destination: %w", err)
	}
	defer func() {
		if err != nil || v.lock == nil {
			v.close()
			v = nil
		}
	}()
	if err := v.read(dest); err != nil {
		return v, err
	}
	if v.current == 0 && v.isFilled() {
		return v, nil
	}
	if err := v.root.MkdirAll(protocol.VersionsDir, 0o755); err != nil {
		return v, fmt.Errorf("create %s: %w", protocol.VersionsDir, err)
	}
	if v.lock, err = v.root.Open(protocol.VersionsDir); err != nil {
		return v, err
	}
	err = unix.Flock(int(v.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = destination.ErrBusy
	}
	return v, err
}

func (v *versions) close() {
	if v.lock != nil {
		_ = v.lock.Close()
	}
	_ = v.root.Close()
}

// read reads which version is current.
func (v *versions) read(dest string) error {
	below, err := filepath.Rel(v.dir, dest)
	if err != nil || !filepath.IsLocal(below) {
		return store.Usage(fmt.Errorf("destination %s is not below %s", dest, v.dir))
	}
	v.below = filepath.ToSlash(below)
	data, err := v.root.ReadFile(protocol.CurrentFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read which version is current: %w", err)
	}
	number, is := protocol.ParseVersion(strings.TrimSuffix(string(data), "\n"))
	if !is {
		return fmt.Errorf("read which version is current: %s/%s holds no number of a version", v.dir, protocol.CurrentFile)
	}
	v.current = number
	return nil
}

// isFilled reports whether a run without versions has filled the directory.
func (v *versions) isFilled() bool {
	_, err := v.root.Lstat(path.Join(v.below, destination.ManifestFile))
	return err == nil
}

// data returns the path of a version's data, below the root.
func (v *versions) data(number int) string { return path.Join(v.of(number), v.below) }

func (v *versions) of(number int) string {
	return path.Join(protocol.VersionsDir, strconv.Itoa(number))
}

func (v *versions) run(ctx context.Context, config Config, progress *Progress) ([]Refusal, error) {
	if err := v.sweep(); err != nil {
		return nil, err
	}
	if v.current == 0 {
		if err := v.switchTo(1); err != nil {
			return nil, err
		}
	}
	config.Dest = filepath.Join(v.dir, v.data(v.current))
	done, err := v.completed(v.current)
	if err != nil {
		return nil, err
	}
	if done == nil {
		config.exclusive = true
		return Run(ctx, config, progress)
	}
	if already, err := isComplete(config); err != nil {
		return nil, err
	} else if already {
		refused, err := Run(ctx, config, progress) // finds the same, and sets the progress
		v.countOld(progress)
		return refused, err
	}
	return v.next(ctx, config, *done, progress)
}

// isComplete reports whether a destination holds what an earlier run of this selection has
// completed.
func isComplete(config Config) (is bool, err error) {
	if config.Sync {
		return false, nil
	}
	r := &run{Config: config, progress: NewProgress(ReadyAfter{})}
	if r.dest, err = destination.Open(config.Dest); err != nil {
		return false, err
	}
	defer r.dest.Close()
	if r.manifest.entries, err = readManifest(config.Dest); err != nil {
		return false, err
	}
	return r.isDone()
}

// next creates the version after the current one, which it does not change. Readers get the current
// version until the end, and a pod keeps the version that it was given. So the progress is not ready,
// however much of the next version exists, until that becomes the current one or turns out not to be
// needed.
func (v *versions) next(ctx context.Context, config Config, done complete, progress *Progress) ([]Refusal, error) {
	progress.holdReady()
	entries, err := readManifest(config.Dest)
	if err != nil {
		return nil, err
	}
	number := v.current + 1
	if err := v.removeUnknown(number); err != nil {
		return nil, err
	}
	config.base = &base{root: v.root, from: v.data(v.current), to: v.data(number), complete: done, entries: entries}
	config.Dest, config.Sync = filepath.Join(v.dir, v.data(number)), true
	refused, err := Run(ctx, config, progress)
	switch {
	case err != nil || !config.base.unchanged && progress.Refused() > 0:
		return refused, err
	case config.base.unchanged:
		if err := v.root.RemoveAll(v.of(number)); err != nil {
			return refused, fmt.Errorf("remove version %d, which is not needed: %w", number, err)
		}
	default:
		if err := v.switchTo(number); err != nil {
			return refused, err
		}
	}
	v.countOld(progress)
	progress.releaseReady()
	return refused, nil
}

// completed returns the record of the run that completed a version; nil if there is none.
func (v *versions) completed(number int) (*complete, error) {
	out, err := readComplete(v.root, path.Join(v.data(number), destination.CompleteFile))
	if err != nil {
		return nil, fmt.Errorf("check version %d: %w", number, err)
	}
	return out, nil
}

// switchTo makes a version the current one, durably and atomically.
func (v *versions) switchTo(number int) error {
	if err := v.root.MkdirAll(v.data(number), 0o755); err != nil {
		return fmt.Errorf("create version %d: %w", number, err)
	}
	next := protocol.CurrentFile + ".new"
	err := v.root.WriteFile(next, []byte(strconv.Itoa(number)+"\n"), 0o644)
	if err == nil {
		err = v.sync() // including the files of the version
	}
	if err == nil {
		err = v.root.Rename(next, protocol.CurrentFile)
	}
	if err == nil {
		err = v.sync()
	}
	if err != nil {
		return fmt.Errorf("make version %d the current one: %w", number, err)
	}
	v.current = number
	return nil
}

func (v *versions) sync() error { return unix.Syncfs(int(v.lock.Fd())) }

// sweep removes the versions that nobody reads.
func (v *versions) sweep() error {
	names, err := fs.ReadDir(v.root.FS(), protocol.VersionsDir)
	if err != nil {
		return fmt.Errorf("list versions: %w", err)
	}
	for _, entry := range names {
		number, unread := strings.CutSuffix(entry.Name(), protocol.UnreadSuffix)
		if n, is := protocol.ParseVersion(number); !unread || !is || n >= v.current {
			continue
		}
		if err := v.root.RemoveAll(path.Join(protocol.VersionsDir, entry.Name())); err != nil {
			return fmt.Errorf("remove a version that nobody reads: %w", err)
		}
	}
	return nil
}

// countOld records how many versions before the current one still exist.
func (v *versions) countOld(progress *Progress) {
	old := int64(0)
	for number := range v.numbers() {
		if number < v.current {
			old++
		}
	}
	progress.oldVersions.Store(old)
}

// numbers returns the numbers of the existing versions.
func (v *versions) numbers() map[int]bool {
	out := map[int]bool{}
	names, _ := fs.ReadDir(v.root.FS(), protocol.VersionsDir) // versions that cannot be listed are not counted
	for _, entry := range names {
		if number, is := protocol.ParseVersion(entry.Name()); is {
			out[number] = true
		}
	}
	return out
}
