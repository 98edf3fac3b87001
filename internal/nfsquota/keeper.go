// Package nfsquota holds the directories of NFS volumes to their sizes, on the node that is the
// server: each for which that is asked has an XFS project of its own, with a limit. Nothing but
// the export says what to do, so it needs no API server.
package nfsquota

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/flexlvm/flexlvm/internal/nfsmark"
	"github.com/flexlvm/flexlvm/internal/quota"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Keeper looks after one export. Only one may look after it at a time.
type Keeper struct {
	dir   string
	open  func(root *os.Root) (quotas, error)
	after func(step string) // tests kill the process here
	seen  stamp
}

// New returns the keeper of the export that is the directory dir of this machine: an absolute path
// without "..". It does not look at it yet.
func New(dir string) (*Keeper, error) {
	if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
		return nil, &volume.FieldError{Field: "--nfs-export", Value: dir, Reason: "must be an absolute path without .., // and / at the end, the directory that this node exports"}
	}
	return &Keeper{dir: dir, open: openXFS, after: func(string) {}}, nil
}

// Dir is the exported directory.
func (k *Keeper) Dir() string { return k.dir }

// A Report says what a look has found.
type Report struct {
	Asked int // directories whose size is to be enforced
	Held  int // those of them for which it is
	// Problems says why the others are not held, one for each, in the order of their names.
	Problems []string
}

// inodeRatio is for how many bytes of its size a directory may have an inode: only of files that
// are empty can there be more than of blocks, and they take room that is not counted in the size.
const inodeRatio = volume.Block

func limitOf(size volume.Bytes) quota.Limit {
	size = size.RoundUp(volume.Block)
	return quota.Limit{Size: size, Inodes: int64(size / inodeRatio)}
}

// Look holds each directory to its size whose mark asks for it, and lifts the limits of those that
// are gone. It may be killed at any instant; the next one goes on. It does nothing where there is
// no such directory, or no volume in it. The error says why none can be held.
func (k *Keeper) Look(ctx context.Context) (r Report, err error) {
	k.seen = k.stampNow()
	root, err := os.OpenRoot(k.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil // this node is not the server
	}
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	names, err := nfsmark.Names(root)
	if errors.Is(err, nfsmark.ErrNone) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	l := &look{Keeper: k, root: root, marked: map[string]bool{}}
	r.Problems = l.read(names)
	r.Asked = len(l.asked) + len(r.Problems)
	if l.records, err = readRecords(root); err != nil || r.Asked == 0 && len(l.records) == 0 {
		return r, err
	}
	if l.quotas, err = k.open(root); errors.Is(err, errElsewhere) {
		return Report{}, nil
	} else if err != nil {
		return r, err
	}
	if l.all, err = l.quotas.projects(); err != nil {
		return r, err
	}
	if err := l.assign(); err != nil {
		return r, err
	}
	for _, m := range l.asked {
		if err := ctx.Err(); err != nil {
			return r, err
		}
		switch made, err := l.hold(m); {
		case err != nil:
			r.Problems = append(r.Problems, err.Error())
		case !made:
			r.Asked--
		default:
			r.Held++
		}
	}
	slices.Sort(r.Problems)
	return r, l.release()
}

// A look is one pass over an export.
type look struct {
	*Keeper
	root    *os.Root
	quotas  quotas
	asked   []nfsmark.Mark
	marked  map[string]bool // PersistentVolumes that have a mark, whatever it says
	records records
	all     map[quota.Project]quota.Usage
}

// read reads the marks. Those that cannot be believed are problems.
func (l *look) read(names []string) (problems []string) {
	slices.Sort(names)
	for _, name := range names {
		l.marked[name] = true
		m, marked, err := nfsmark.Read(l.root, name)
		if err == nil && marked && m.Size != 0 {
			err = checkMark(m, name)
		}
		switch {
		case err != nil:
			problems = append(problems, fmt.Sprintf("mark %s/%s: %v", nfsmark.Dir, name, err))
		case marked && m.Size != 0:
			l.asked = append(l.asked, m)
		}
	}
	return problems
}

func checkMark(m nfsmark.Mark, name string) error {
	if m.PersistentVolume != name {
		return &volume.FieldError{Field: "persistentVolume", Value: m.PersistentVolume, Reason: "is not the name of the mark"}
	}
	if m.Size < 0 {
		return &volume.FieldError{Field: "size", Value: fmt.Sprint(int64(m.Size)), Reason: "is less than 0"}
	}
	return nfsmark.CheckDirectory("directory", m.Directory, m.PersistentVolume)
}

// openDirectory opens the directory of a volume; nil if there is none of its name: it is not made
// yet, or is removed or archived.
func (l *look) openDirectory(name string) (*os.File, error) {
	err := nfsmark.CheckOwn(l.root, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	seen, err := l.root.Lstat(name)
	if err != nil {
		return nil, err
	}
	dir, err := l.root.OpenFile(name, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	opened, err := dir.Stat()
	if err == nil && !os.SameFile(seen, opened) { // clients of the server may replace it
		err = fmt.Errorf("open directory %s: another took its place in that moment", name)
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// hold gives a directory its project and limit; made is false if it is not there. Each step may
// be the last one before a kill: the limit comes first, so that nothing is ever written in the
// project without one.
func (l *look) hold(m nfsmark.Mark) (made bool, err error) {
	dir, err := l.openDirectory(m.Directory)
	if err != nil || dir == nil {
		return false, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	rec := l.records[m.PersistentVolume]
	p := rec.Project
	if rec.Directory != m.Directory {
		return false, fmt.Errorf("directory %s: its project %d is that of %s by %s/%s; correct one of them by hand", m.Directory, p, rec.Directory, nfsmark.Dir, recordFile)
	}
	has, err := l.quotas.projectOf(dir)
	if err != nil {
		return false, err
	}
	if has != 0 && has != p {
		return false, fmt.Errorf("directory %s has project %d, which flexlvm did not give it, and has to keep it: its size is not enforced by flexlvm", m.Directory, has)
	}
	if has == 0 {
		if err := requireEmpty(dir); err != nil {
			return false, fmt.Errorf("directory %s %w; give them its project on the server: xfs_quota -x -c 'project -s -p %s %d' %s", m.Directory, err, filepath.Join(l.dir, m.Directory), p, l.dir)
		}
	}
	if want := limitOf(m.Size); l.all[p].Limit != want {
		if err := l.quotas.set(p, want); err != nil {
			return false, err
		}
		l.after("set limit")
	}
	if err := l.quotas.assign(dir, p); err != nil {
		return false, err
	}
	l.after("assign project")
	return true, nil
}

// errHasFiles says what keeps a directory from being given a project.
var errHasFiles = errors.New("has files from before it had a project, which its quota would not count")

func requireEmpty(dir *os.File) error {
	names, err := dir.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil && len(names) > 0 {
		return errHasFiles
	}
	return err
}

// A stamp tells whether volumes have come or gone.
type stamp struct{ marks, dir time.Time }

func (k *Keeper) stampNow() (s stamp) {
	if info, err := os.Lstat(filepath.Join(k.dir, nfsmark.Dir)); err == nil {
		s.marks = info.ModTime()
	}
	if info, err := os.Lstat(k.dir); err == nil {
		s.dir = info.ModTime()
	}
	return s
}

const (
	// poll is how often to see whether volumes have come or gone.
	poll = time.Second
	// fresh is how long after a change another may have the same time.
	fresh = 2 * time.Second
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
		if k.stampNow() != k.seen || young(k.seen.marks) || young(k.seen.dir) {
			return
		}
	}
}
