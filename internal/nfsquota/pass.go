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

// A pass is one run over an export, and what it has found.
type pass struct {
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
func (p *pass) begin(points []mount.Point) error {
	elsewhere, err := onNFS(points, p.dir)
	p.local = err == nil && !elsewhere
	if !p.local {
		return err
	}
	p.seen = p.stampNow()
	p.root, err = nfsmark.OpenRoot(p.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return p.missing() // this node is not the server
	}
	if err != nil {
		return err
	}
	info, err := p.root.Stat(".")
	if err != nil {
		return err
	}
	st := info.Sys().(*syscall.Stat_t)
	p.at = place{st.Dev, st.Ino}
	names, err := nfsmark.Names(p.root)
	if errors.Is(err, nfsmark.ErrNone) {
		return p.missing()
	}
	if err != nil {
		return err
	}
	p.Problems = p.read(names)
	p.Asked = len(p.asked) + len(p.Problems)
	p.records, err = readRecords(p.root)
	return err
}

// missing returns an error if there were volumes before.
func (p *pass) missing() error {
	if p.known == 0 {
		return nil
	}
	return fmt.Errorf("there is no %s in it any more; see whether its file system is mounted. If the volumes are gone for good, restart the node daemon", nfsmark.Dir)
}

// requireDistinct rejects exports that are the same directory as another export, by a link or a second
// mount.
func requireDistinct(passes []*pass) {
	by := map[place]string{}
	for _, p := range passes {
		if p.root == nil {
			continue
		}
		other, twice := by[p.at]
		if !twice {
			by[p.at] = p.dir
			continue
		}
		err := &volume.FieldError{Field: flag, Value: p.dir, Reason: fmt.Sprintf("is the same directory as %s, which is looked after; give one of them", other)}
		*p.Report = Report{Export: p.dir, Err: errors.Join(err, p.root.Close())}
		p.root, p.records = nil, nil
	}
}

// compare collects the projects that other exports on the same file system have recorded.
func (p *pass) compare(passes []*pass) {
	for _, o := range passes {
		if o == p || o.root == nil || o.at.device != p.at.device {
			continue
		}
		if o.records == nil && o.Err != nil {
			p.noProject = fmt.Errorf("no project is chosen for it while those of NFS export %s on the same file system are not known", o.dir)
		}
		for _, all := range []records{o.inDoubt, o.records} {
			for v, r := range all {
				p.others[r.Project] = fmt.Sprintf("%s in NFS export %s", v, o.dir)
			}
		}
	}
}

// work enforces the sizes that the marks request. An error means that it enforces none.
func (p *pass) work(ctx context.Context) (err error) {
	if p.Asked == 0 && len(p.records) == 0 {
		return nil
	}
	if p.quotas, err = p.open(p.root); errors.Is(err, errElsewhere) {
		*p.Report = Report{Export: p.dir}
		return nil
	} else if err != nil {
		return err
	}
	if p.all, err = p.quotas.projects(); err != nil {
		return err
	}
	p.assign()
	for _, m := range p.asked {
		if err := ctx.Err(); err != nil {
			return err
		}
		switch made, err := p.hold(m); {
		case err != nil:
			p.Problems = append(p.Problems, err.Error())
		case !made:
			p.Asked--
		default:
			p.Held++
		}
	}
	slices.Sort(p.Problems)
	return p.release()
}

// end closes the root, and saves the number of volumes.
func (p *pass) end() {
	if p.root != nil {
		p.Err = errors.Join(p.Err, p.root.Close())
	}
	switch {
	case p.Err == nil:
		p.known = p.Asked
	case p.Asked == 0:
		p.Asked = p.known
	}
}

// read reads the marks. It reports invalid marks as problems.
func (p *pass) read(names []string) (problems []string) {
	slices.Sort(names)
	for _, name := range names {
		p.marked[name] = true
		m, marked, err := nfsmark.Read(p.root, name)
		if err == nil && marked && m.Size != 0 {
			err = checkMark(m, name)
		}
		switch {
		case err != nil:
			problems = append(problems, fmt.Sprintf("mark %s/%s: %v", nfsmark.Dir, name, err))
		case marked && m.Size != 0:
			p.asked = append(p.asked, m)
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
func (p *pass) openDirectory(name string) (*os.File, error) {
	err := nfsmark.CheckPlainDirectory(p.root, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	seen, err := p.root.Lstat(name)
	if err != nil {
		return nil, err
	}
	dir, err := nfsmark.OpenDirectory(p.root, name)
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
func (p *pass) hold(m nfsmark.Mark) (made bool, err error) {
	dir, err := p.openDirectory(m.Directory)
	if err != nil || dir == nil {
		return false, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	project, err := p.projectFor(m, dir)
	if err != nil {
		return false, fmt.Errorf("directory %s %w", m.Directory, err)
	}
	if want := limitOf(m.Size); p.all[project].Limit != want {
		if err := p.quotas.set(project, want); err != nil {
			return false, err
		}
		p.after("set limit")
	}
	if err := p.quotas.assign(dir, project); err != nil {
		return false, err
	}
	p.after("assign project")
	return true, nil
}

// projectFor returns the project that is recorded for a directory. The error explains why the directory
// cannot have it, phrased to follow the directory's name.
func (p *pass) projectFor(m nfsmark.Mark, dir *os.File) (quota.Project, error) {
	rec, has := p.records[m.PersistentVolume]
	project := rec.Project
	if !has {
		return 0, fmt.Errorf("has no project: %w", p.noProject)
	}
	if rec.Directory != m.Directory {
		return 0, fmt.Errorf("is not %s, which has its project %d by %s; correct the mark or that file by hand", rec.Directory, project, recordPath)
	}
	if other, theirs := p.others[project]; theirs {
		return 0, fmt.Errorf("has project %d by %s, which is that of %s as well; correct one of them by hand", project, recordPath, other)
	}
	is, err := p.quotas.projectOf(dir)
	if err != nil {
		return 0, fmt.Errorf("has a project that cannot be read: %w", err)
	}
	if is == project {
		return project, nil
	}
	if is != 0 {
		return 0, fmt.Errorf("has project %d, which flexlvm did not assign and does not change, so flexlvm does not enforce its size", is)
	}
	if n := p.all[project].Inodes; n > 0 {
		return 0, fmt.Errorf("is to have project %d by %s, in which %s elsewhere; remove them, or take its entry out of that file, so that it gets another", project, recordPath, volume.Pluralize(int(n), "file is", "files are"))
	}
	if err := requireEmpty(dir); err != nil {
		return 0, fmt.Errorf("%w; give them its project on the server: xfs_quota -x -c 'project -s -p %s %d' %s", err, filepath.Join(p.dir, m.Directory), project, p.dir)
	}
	return project, nil
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
