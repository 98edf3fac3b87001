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

// A Keeper looks after the exports of a node, one after the other: those on one file system share
// its projects. Only one may look after them at a time.
type Keeper struct {
	exports []*export
	mounts  func() ([]mount.Point, error)
}

// An export is a directory of this machine, and what was found in it.
type export struct {
	dir   string
	open  func(root *os.Root) (quotas, error)
	write func(root *os.Root, name string, what any) error
	after func(step string) // tests kill the process here
	local bool              // it does not lie on another server
	seen  stamp
	known int // volumes whose size was to be enforced when that was last known
}

// New returns the keeper of the exports that are these directories of this machine: absolute paths
// without "..". It does not look at them yet. The error is a *volume.FieldError.
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

// A Report says what a look has found in an export.
type Report struct {
	Export string // the directory
	Asked  int    // directories whose size is to be enforced
	Held   int    // those of them for which it is
	// Problems says why the others are not held, one for each, in the order of their names.
	Problems []string
	// Err says why none can be held.
	Err error
}

// Look holds each directory to its size whose mark asks for it, and lifts the limits of those that
// are gone. It may be killed at any instant; the next one goes on. It does nothing where there is
// no such directory, or no volume in it, or where it is that of another server.
func (k *Keeper) Look(ctx context.Context) []Report {
	reports := make([]Report, len(k.exports))
	looks := make([]*look, len(k.exports))
	points, err := k.mounts()
	for i, e := range k.exports {
		reports[i] = Report{Export: e.dir, Err: err}
		looks[i] = &look{Report: &reports[i], export: e, marked: map[string]bool{}, others: map[quota.Project]string{}}
		if err == nil {
			looks[i].Err = looks[i].begin(points)
		}
	}
	requireDistinct(looks)
	for _, l := range looks {
		if l.root != nil && l.Err == nil {
			l.compare(looks)
			l.Err = l.work(ctx)
		}
	}
	for _, l := range looks {
		l.end()
	}
	return reports
}

// A stamp changes when volumes come or go.
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
	// poll is how often to see whether volumes have come or gone.
	poll = time.Second
	// fresh is how long after a change another may have the same time, and files that were removed
	// may be counted still: a server has them open for a moment.
	fresh = 10 * time.Second
)

// Await returns when it is time for another look: when volumes have come or gone, after most, or
// when ctx ends.
func (k *Keeper) Await(ctx context.Context, most time.Duration) {
	began := time.Now()
	end := time.NewTimer(most)
	defer end.Stop()
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	young := func(t time.Time) bool { d := began.Sub(t); return d > -fresh && d < fresh }
	for {
		select {
		case <-ctx.Done():
			return
		case <-end.C:
			return
		case <-ticker.C:
		}
		for _, e := range k.exports {
			if e.local && (e.stampNow() != e.seen || young(e.seen.marks) || young(e.seen.dir)) {
				return
			}
		}
	}
}
