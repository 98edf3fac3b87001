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

	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/nfsmark"
	"github.com/flexlvm/flexlvm/internal/quota"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// One inode is allowed per inodeRatio bytes. Empty files, short links and small directories are stored
// in their inodes, whose space does not count toward the size.
const inodeRatio = volume.Block

func limitOf(size volume.Bytes) quota.Limit {
	size = size.RoundUp(volume.Block)
	return quota.Limit{Size: size, Inodes: int64(size / inodeRatio)}
}

// A look is one pass over an export.
type look struct {
	*Report
	*export
	root    *os.Root // nil: nothing to do
	at      place
	quotas  quotas
	asked   []nfsmark.Mark
	marked  map[string]bool // PersistentVolumes with a mark, valid or not
	records records         // nil: there are none, or they could not be read
	all     map[quota.Project]quota.Usage
	// others holds the owners of the projects that other exports on this file system have recorded.
	others map[quota.Project]string
	// inDoubt are records whose write has failed, so that it is unknown whether they are on disk.
	inDoubt records
	// noProject is why directories without a project cannot get one.
	noProject error
}

// A place identifies a directory, by whatever path.
type place struct{ device, inode uint64 }

// begin reads the export's marks and records.
func (l *look) begin(points []mount.Point) error {
	elsewhere, err := onNFS(points, l.dir)
	l.local = err == nil && !elsewhere
	if !l.local {
		return err
	}
	l.seen = l.stampNow()
	l.root, err = nfsmark.OpenRoot(l.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return l.missing() // this node is not the server
	}
	if err != nil {
		return err
	}
	info, err := l.root.Stat(".")
	if err != nil {
		return err
	}
	st := info.Sys().(*syscall.Stat_t)
	l.at = place{st.Dev, st.Ino}
	names, err := nfsmark.Names(l.root)
	if errors.Is(err, nfsmark.ErrNone) {
		return l.missing()
	}
	if err != nil {
		return err
	}
	l.Problems = l.read(names)
	l.Asked = len(l.asked) + len(l.Problems)
	l.records, err = readRecords(l.root)
	return err
}

// missing returns an error if there were volumes before.
func (l *look) missing() error {
	if l.known == 0 {
		return nil
	}
	return fmt.Errorf("there is no %s in it any more; see whether its file system is mounted. If the volumes are gone for good, restart the node daemon", nfsmark.Dir)
}

// requireDistinct rejects exports that are the same directory as another export, by a link or a second
// mount.
func requireDistinct(looks []*look) {
	by := map[place]string{}
	for _, l := range looks {
		if l.root == nil {
			continue
		}
		other, twice := by[l.at]
		if !twice {
			by[l.at] = l.dir
			continue
		}
		err := &volume.FieldError{Field: flag, Value: l.dir, Reason: fmt.Sprintf("is the same directory as %s, which is looked after; give one of them", other)}
		*l.Report = Report{Export: l.dir, Err: errors.Join(err, l.root.Close())}
		l.root, l.records = nil, nil
	}
}

// compare collects the projects that other exports on the same file system have recorded.
func (l *look) compare(looks []*look) {
	for _, o := range looks {
		if o == l || o.root == nil || o.at.device != l.at.device {
			continue
		}
		if o.records == nil && o.Err != nil {
			l.noProject = fmt.Errorf("no project is chosen for it while those of NFS export %s on the same file system are not known", o.dir)
		}
		for _, all := range []records{o.inDoubt, o.records} {
			for v, r := range all {
				l.others[r.Project] = fmt.Sprintf("%s in NFS export %s", v, o.dir)
			}
		}
	}
}

// work enforces the sizes that the marks request. An error means that it enforces none.
func (l *look) work(ctx context.Context) (err error) {
	if l.Asked == 0 && len(l.records) == 0 {
		return nil
	}
	if l.quotas, err = l.open(l.root); errors.Is(err, errElsewhere) {
		*l.Report = Report{Export: l.dir}
		return nil
	} else if err != nil {
		return err
	}
	if l.all, err = l.quotas.projects(); err != nil {
		return err
	}
	l.assign()
	for _, m := range l.asked {
		if err := ctx.Err(); err != nil {
			return err
		}
		switch made, err := l.hold(m); {
		case err != nil:
			l.Problems = append(l.Problems, err.Error())
		case !made:
			l.Asked--
		default:
			l.Held++
		}
	}
	slices.Sort(l.Problems)
	return l.release()
}

// end closes the root, and saves the number of volumes.
func (l *look) end() {
	if l.root != nil {
		l.Err = errors.Join(l.Err, l.root.Close())
	}
	switch {
	case l.Err == nil:
		l.known = l.Asked
	case l.Asked == 0:
		l.Asked = l.known
	}
}

// read reads the marks. It reports invalid marks as problems.
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

// openDirectory opens the directory of a volume; nil if it does not exist: it is not created yet, or
// was removed or archived.
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
	dir, err := nfsmark.OpenDirectory(l.root, name)
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

// hold sets the project and limit of a directory; made is false if the directory does not exist. The
// process may be killed after each step: the limit is set first, so that nothing is ever written in the
// project without one.
func (l *look) hold(m nfsmark.Mark) (made bool, err error) {
	dir, err := l.openDirectory(m.Directory)
	if err != nil || dir == nil {
		return false, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	p, err := l.projectFor(m, dir)
	if err != nil {
		return false, fmt.Errorf("directory %s %w", m.Directory, err)
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

// projectFor returns the project that is recorded for a directory. The error explains why the directory
// cannot have it, phrased to follow the directory's name.
func (l *look) projectFor(m nfsmark.Mark, dir *os.File) (quota.Project, error) {
	rec, has := l.records[m.PersistentVolume]
	p := rec.Project
	if !has {
		return 0, fmt.Errorf("has no project: %w", l.noProject)
	}
	if rec.Directory != m.Directory {
		return 0, fmt.Errorf("is not %s, which has its project %d by %s; correct the mark or that file by hand", rec.Directory, p, recordPath)
	}
	if other, theirs := l.others[p]; theirs {
		return 0, fmt.Errorf("has project %d by %s, which is that of %s as well; correct one of them by hand", p, recordPath, other)
	}
	is, err := l.quotas.projectOf(dir)
	if err != nil {
		return 0, fmt.Errorf("has a project that cannot be read: %w", err)
	}
	if is == p {
		return p, nil
	}
	if is != 0 {
		return 0, fmt.Errorf("has project %d, which flexlvm did not give it, and has to keep it: its size is not enforced by flexlvm", is)
	}
	if n := l.all[p].Inodes; n > 0 {
		return 0, fmt.Errorf("is to have project %d by %s, in which %s elsewhere; remove them, or take its entry out of that file, so that it gets another", p, recordPath, volume.Pluralize(int(n), "file is", "files are"))
	}
	if err := requireEmpty(dir); err != nil {
		return 0, fmt.Errorf("%w; give them its project on the server: xfs_quota -x -c 'project -s -p %s %d' %s", err, filepath.Join(l.dir, m.Directory), p, l.dir)
	}
	return p, nil
}

// errHasFiles means that a directory cannot get a project because it is not empty.
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
