package nfsquota

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/nfsmark"
	"github.com/flexlvm/flexlvm/internal/quota"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Keeper enforces quotas in the exports of a node, one export after the other, because exports on one
// file system share its projects. Only one Keeper may run at a time.
type Keeper struct {
	exports []*export
	mounts  func() ([]mount.Point, error)
}

// An export is a directory of this machine, and the last state found in it.
type export struct {
	dir   string
	open  func(root *os.Root) (quotas, error)
	write func(root *os.Root, name string, what any) error
	after func(step string) // tests kill the process here
	local bool              // the directory is not on another server
	seen  stamp
	// counted reports whether the project of a directory that is gone still has files: they are
	// removed in the background, or the directory is archived.
	counted bool
	known   int // number of volumes whose size is to be enforced, when last known
}

// New returns the keeper of the exports with these directories of this machine: absolute paths without
// "..". It does not access them yet. The error is a *volume.FieldError.
func New(dirs []string) (*Keeper, error) {
	k := &Keeper{mounts: mount.All}
	for i, dir := range dirs {
		if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
			return nil, &volume.FieldError{Field: flag, Value: dir, Reason: "must be an absolute path without .., // and / at the end, the directory that this node exports"}
		}
		if slices.Contains(dirs[:i], dir) {
			return nil, &volume.FieldError{Field: flag, Value: dir, Reason: "is given twice"}
		}
		k.exports = append(k.exports, &export{dir: dir, open: openXFS, write: nfsmark.WriteJSON, after: func(string) {}})
	}
	return k, nil
}

const flag = "--nfs-export"

// A Report is the result of a pass over an export.
type Report struct {
	Export string // the directory
	Asked  int    // number of directories whose size is to be enforced
	Held   int    // number of those directories whose size is enforced
	// Problems explains why the others are not enforced, one entry each, sorted.
	Problems []string
	// Err is why none can be enforced.
	Err error
}

// Reconcile enforces the size of each directory whose mark requests it, and lifts the limits of directories
// that are gone. It may be killed at any instant; the next call continues. It skips an export whose
// directory does not exist, has no volumes, or is mounted from another server.
func (k *Keeper) Reconcile(ctx context.Context) []Report {
	reports := make([]Report, len(k.exports))
	passes := make([]*pass, len(k.exports))
	points, err := k.mounts()
	for i, e := range k.exports {
		reports[i] = Report{Export: e.dir, Err: err}
		passes[i] = &pass{Report: &reports[i], export: e, marked: map[string]bool{}, others: map[quota.Project]string{}}
		if err == nil {
			passes[i].Err = passes[i].begin(points)
		}
	}
	requireDistinct(passes)
	for _, p := range passes {
		if p.root != nil && p.Err == nil {
			p.compare(passes)
			p.Err = p.work(ctx)
		}
	}
	for _, p := range passes {
		p.end()
	}
	return reports
}

// A stamp changes when volumes are created or removed.
type stamp struct{ marks, dir time.Time }

func (e *export) stampNow() (s stamp) {
	if info, err := os.Lstat(filepath.Join(e.dir, nfsmark.Dir)); err == nil {
		s.marks = info.ModTime()
	}
	if info, err := os.Lstat(e.dir); err == nil {
		s.dir = info.ModTime()
	}
	return s
}

const (
	// poll is how often to check for created and removed volumes.
	poll = time.Second
	// fresh is how long after a change a second change may have the same timestamp, and removed files
	// may still be counted, because the server keeps them open for a moment.
	fresh = 10 * time.Second
	// After a change, passes follow each other at countedPoll for countedWindow as long as files of
	// directories that are gone are counted.
	countedPoll   = 3 * time.Second
	countedWindow = time.Minute
)

// Await returns when the next pass is due: when volumes were created or removed, when removed files may
// not be counted any more, after maxWait, or when ctx ends.
func (k *Keeper) Await(ctx context.Context, maxWait time.Duration) {
	began := time.Now()
	end := time.NewTimer(maxWait)
	defer end.Stop()
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	within := func(window time.Duration, s stamp) bool {
		young := func(t time.Time) bool { d := began.Sub(t); return d > -window && d < window }
		return young(s.marks) || young(s.dir)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-end.C:
			return
		case <-ticker.C:
		}
		for _, e := range k.exports {
			if !e.local {
				continue
			}
			if e.stampNow() != e.seen || within(fresh, e.seen) {
				return
			}
			if e.counted && time.Since(began) >= countedPoll && within(countedWindow, e.seen) {
				return
			}
		}
	}
}
