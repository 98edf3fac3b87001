package nfsquota

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/nfsmark"
	"github.com/flexlvm/flexlvm/internal/quota"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// fake is the quotas of a file system. The projects of directories are kept by inode.
type fake struct {
	limits map[quota.Project]quota.Limit
	used   map[quota.Project]bool // by a person
	dirs   []assigned
	sets   int
}

type assigned struct {
	info    fs.FileInfo
	project quota.Project
}

func (f *fake) projects() (map[quota.Project]quota.Usage, error) {
	all := map[quota.Project]quota.Usage{}
	for p, l := range f.limits {
		if l != (quota.Limit{}) {
			all[p] = quota.Usage{Limit: l}
		}
	}
	for p := range f.used {
		all[p] = quota.Usage{Limit: f.limits[p], Inodes: 1}
	}
	for _, d := range f.dirs {
		all[d.project] = quota.Usage{Limit: f.limits[d.project], Inodes: all[d.project].Inodes + 1}
	}
	return all, nil
}

func (f *fake) set(p quota.Project, l quota.Limit) error {
	f.limits[p] = l
	f.sets++
	return nil
}

func (f *fake) projectOf(dir *os.File) (quota.Project, error) {
	info, err := dir.Stat()
	for _, d := range f.dirs {
		if os.SameFile(d.info, info) {
			return d.project, err
		}
	}
	return 0, err
}

func (f *fake) assign(dir *os.File, p quota.Project) error {
	if has, err := f.projectOf(dir); err != nil || has == p {
		return err
	}
	info, err := dir.Stat()
	f.dirs = append(f.dirs, assigned{info, p})
	return err
}

// bed is an export and its keeper.
type bed struct {
	*export
	keeper *Keeper
	t      *testing.T
	fake   *fake
}

func newBed(t *testing.T) *bed {
	k, err := New([]string{t.TempDir()})
	require.NoError(t, err)
	b := &bed{keeper: k, export: k.exports[0], t: t, fake: &fake{limits: map[quota.Project]quota.Limit{}, used: map[quota.Project]bool{}}}
	b.open = func(*os.Root) (quotas, error) { return b.fake, nil }
	return b
}

func volumeName(n int) string { return fmt.Sprintf("pvc-00000000-0000-0000-0000-%012d", n) }
func directory(n int) string  { return "team-data-" + volumeName(n) }

// mark marks the directory of a volume as the provisioner does, before it creates the directory.
func (b *bed) mark(n int, size volume.Bytes) {
	b.t.Helper()
	root, err := os.OpenRoot(b.dir)
	require.NoError(b.t, err)
	defer root.Close()
	require.NoError(b.t, nfsmark.Mark{Directory: directory(n), PersistentVolume: volumeName(n), Size: size}.Write(root))
}

func (b *bed) path(names ...string) string {
	return filepath.Join(append([]string{b.dir}, names...)...)
}

func (b *bed) make(n int, size volume.Bytes) {
	b.t.Helper()
	b.mark(n, size)
	require.NoError(b.t, os.Mkdir(b.path(directory(n)), 0o777))
}

func (b *bed) unmark(n int) { require.NoError(b.t, os.Remove(b.path(nfsmark.Dir, volumeName(n)))) }

// reconcile calls the keeper's Reconcile for the bed's only export.
func (b *bed) reconcile() (Report, error) {
	r := b.keeper.Reconcile(b.t.Context())[0]
	require.Equal(b.t, b.dir, r.Export)
	err := r.Err
	r.Export, r.Err = "", nil
	return r, err
}

func (b *bed) pass() Report {
	b.t.Helper()
	r, err := b.reconcile()
	require.NoError(b.t, err)
	return r
}

// project returns the project of a volume's directory; 0: none.
func (b *bed) project(n int) quota.Project {
	b.t.Helper()
	dir, err := os.Open(b.path(directory(n)))
	require.NoError(b.t, err)
	defer dir.Close()
	p, err := b.fake.projectOf(dir)
	require.NoError(b.t, err)
	return p
}

func TestLife(t *testing.T) {
	b := newBed(t)
	require.Zero(t, b.pass(), "an export without a volume")
	require.NoDirExists(t, b.path(nfsmark.Dir))
	b.make(1, 0)
	require.Zero(t, b.pass(), "nobody asks for anything")
	require.Zero(t, b.project(1))
	require.NoFileExists(t, b.path(nfsmark.Dir, recordFile))

	b.fake.used[firstProject], b.fake.used[math.MaxUint32] = true, true // set by a person
	b.mark(2, 10*volume.MiB+1)
	require.Zero(t, b.pass(), "its directory is not made yet")
	require.NoError(t, os.Mkdir(b.path(directory(2)), 0o777))
	require.Equal(t, Report{Asked: 1, Held: 1}, b.pass())
	require.Equal(t, firstProject+1, b.project(2))
	require.Equal(t, quota.Limit{Size: 10*volume.MiB + 4*volume.KiB, Inodes: 2561}, b.fake.limits[firstProject+1])
	require.Zero(t, b.project(1))

	sets := b.fake.sets
	require.NoError(t, os.WriteFile(b.path(directory(2), "file"), []byte("x"), 0o600))
	require.Equal(t, Report{Asked: 1, Held: 1}, b.pass(), "with what a tenant has written")
	require.Equal(t, sets, b.fake.sets, "nothing is written where nothing is missing")
	b.mark(2, 20*volume.MiB) // a person has raised the size
	require.Equal(t, Report{Asked: 1, Held: 1}, b.pass())
	require.Equal(t, 20*volume.MiB, b.fake.limits[firstProject+1].Size)

	// Archived: the rename comes first, then the removal of the mark.
	require.NoError(t, os.Rename(b.path(directory(2)), b.path("archived-"+directory(2))))
	require.Zero(t, b.pass())
	require.Equal(t, 20*volume.MiB, b.fake.limits[firstProject+1].Size, "while it is marked")
	b.unmark(2)
	require.Zero(t, b.pass())
	require.Equal(t, 20*volume.MiB, b.fake.limits[firstProject+1].Size, "what is archived is in it")
	require.FileExists(t, b.path(nfsmark.Dir, recordFile))

	b.make(3, volume.MiB)
	require.Equal(t, Report{Asked: 1, Held: 1}, b.pass())
	require.Equal(t, firstProject+2, b.project(3), "the archived files still have theirs")
	b.unmark(3)
	require.Zero(t, b.pass())
	require.Equal(t, volume.MiB, b.fake.limits[firstProject+2].Size, "the mark alone is gone: nothing proves that the volume is")

	b.mark(2, 20*volume.MiB)
	require.NoError(t, os.Rename(b.path("archived-"+directory(2)), b.path(directory(2))))
	require.Equal(t, Report{Asked: 1, Held: 1}, b.pass(), "a person has put it back")
	b.fake.dirs = nil
	b.unmark(2)
	for _, n := range []int{2, 3} {
		require.NoError(t, os.RemoveAll(b.path(directory(n))))
	}
	require.Zero(t, b.pass())
	require.Zero(t, b.fake.limits[firstProject+1])
	require.Zero(t, b.fake.limits[firstProject+2])
	require.NoFileExists(t, b.path(nfsmark.Dir, recordFile))
}

// After a kill at any step in the life of three volumes, the next pass continues. No two directories ever share a
// project, and none is without its limit.
func TestKilledAfterEachStep(t *testing.T) {
	type killed struct{}
	life := func(at int) (steps int) {
		b := newBed(t)
		b.after = func(string) {
			if steps++; steps == at {
				panic(killed{})
			}
		}
		pass := func() (r Report) {
			for again := true; again; {
				func() {
					defer func() {
						if e := recover(); e != nil {
							require.Equal(t, killed{}, e)
						}
					}()
					r, again = b.pass(), false
				}()
				for _, d := range b.fake.dirs {
					require.NotZero(t, b.fake.limits[d.project], "limit of %d", d.project)
				}
			}
			return r
		}
		b.make(1, volume.MiB)
		require.Equal(t, Report{Asked: 1, Held: 1}, pass())
		b.make(2, 2*volume.MiB)
		b.make(3, 3*volume.MiB)
		require.Equal(t, Report{Asked: 3, Held: 3}, pass())
		projects := []quota.Project{b.project(1), b.project(2), b.project(3)}
		require.Len(t, slices.Compact(slices.Sorted(slices.Values(projects))), 3)
		for n, p := range projects {
			require.Equal(t, limitOf(volume.Bytes(n+1)*volume.MiB), b.fake.limits[p])
		}
		b.fake.dirs = nil
		for n := range 3 {
			require.NoError(t, os.Remove(b.path(directory(n+1))))
			b.unmark(n + 1)
		}
		require.Zero(t, pass())
		for p := range maps.Keys(b.fake.limits) {
			require.Zero(t, b.fake.limits[p])
		}
		require.NoFileExists(t, b.path(nfsmark.Dir, recordFile))
		return steps
	}
	steps := life(0)
	require.Equal(t, 13, steps)
	for at := range steps {
		life(at + 1)
	}
}

func TestWhatIsNotHeld(t *testing.T) {
	write := func(name, content string) func(b *bed) {
		return func(b *bed) { require.NoError(b.t, os.WriteFile(b.path(name), []byte(content), 0o600)) }
	}
	markFile := filepath.Join(nfsmark.Dir, volumeName(1))
	tests := map[string]struct {
		change func(b *bed)
		want   string
	}{
		"a person's project": {func(b *bed) {
			dir, err := os.Open(b.path(directory(1)))
			require.NoError(b.t, err)
			require.NoError(b.t, errors.Join(b.fake.assign(dir, 4711), dir.Close()))
		}, "has project 4711, which flexlvm did not assign"},
		"files from before": {write(filepath.Join(directory(1), "old"), "x"), "project -s -p "},
		"a link": {func(b *bed) {
			require.NoError(b.t, os.Remove(b.path(directory(1))))
			require.NoError(b.t, os.Mkdir(b.path("other"), 0o755))
			require.NoError(b.t, os.Symlink("other", b.path(directory(1))))
		}, "is not a directory"},
		"half a mark":        {write(markFile, "{"), "read mark"},
		"another's mark":     {write(markFile, `{"directory":"`+directory(2)+`","persistentVolume":"`+volumeName(2)+`","size":1048576}`), "is not the name of the mark"},
		"a path in the mark": {write(markFile, `{"directory":"../x-`+volumeName(1)+`","persistentVolume":"`+volumeName(1)+`","size":1048576}`), "does not end in a directory"},
		"a size below 0":     {write(markFile, `{"directory":"`+directory(1)+`","persistentVolume":"`+volumeName(1)+`","size":-1}`), "is less than 0"},
		"a pipe": {func(b *bed) {
			require.NoError(b.t, errors.Join(os.Remove(b.path(markFile)), unix.Mkfifo(b.path(markFile), 0o600)))
		}, "is not a plain file"},
		"null": {write(markFile, "null"), "it says nothing"},
		"a project in use": {func(b *bed) {
			b.fake.used[firstProject+5] = true
			write(filepath.Join(nfsmark.Dir, recordFile), `{"`+volumeName(1)+`":{"directory":"`+directory(1)+`","project":1073741829}}`)(b)
		}, "in which 1 file is elsewhere"},
		"a record of another": {write(filepath.Join(nfsmark.Dir, recordFile), `{"`+volumeName(1)+`":{"directory":"x-`+volumeName(1)+`","project":1073741830}}`), "correct the mark or that file by hand"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.make(1, volume.MiB)
			b.make(3, volume.MiB)
			tt.change(b)
			r := b.pass()
			require.Equal(t, 2, r.Asked)
			require.Equal(t, 1, r.Held, "the other is held")
			require.Len(t, r.Problems, 1)
			require.Contains(t, r.Problems[0], tt.want)
			if name != "a person's project" && name != "a link" {
				require.Zero(t, b.project(1))
			}
			require.Len(t, b.pass().Problems, 1, "again")
		})
	}
}

func TestWhatHoldsNone(t *testing.T) {
	for name, tt := range map[string]struct {
		records string
		want    string
	}{
		"half a record file":   {"{", "is not known"},
		"a project twice":      {`{"` + volumeName(1) + `":{"directory":"` + directory(1) + `","project":1073741831},"` + volumeName(2) + `":{"directory":"` + directory(2) + `","project":1073741831}}`, "project 1073741831"},
		"a record with a path": {`{"` + volumeName(1) + `":{"directory":"/etc","project":1073741831}}`, "does not end in a directory"},
		"null":                 {"null", "it says nothing"},
		"a null in it":         {`{"` + volumeName(1) + `":null}`, "project 0"},
		"a person's project":   {`{"` + volumeName(2) + `":{"directory":"` + directory(2) + `","project":1}}`, "is less than 1073741824, so flexlvm did not choose it"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.make(1, volume.MiB)
			require.NoError(t, os.WriteFile(b.path(nfsmark.Dir, recordFile), []byte(tt.records), 0o600))
			r, err := b.reconcile()
			require.ErrorContains(t, err, tt.want)
			require.Equal(t, 1, r.Asked)
			require.Zero(t, r.Held)
			require.Zero(t, b.fake.sets)
			require.Zero(t, b.project(1))
		})
	}
	b := newBed(t)
	b.make(1, volume.MiB)
	b.open = openXFS // the temporary directory is not on XFS, or has no project quota
	_, err := b.reconcile()
	require.ErrorContains(t, err, "prjquota")
	b.open = func(*os.Root) (quotas, error) { return nil, errElsewhere }
	require.Zero(t, b.pass())
	require.NoError(t, os.RemoveAll(b.path(nfsmark.Dir)))
	require.NoError(t, os.Symlink("/etc", b.path(nfsmark.Dir)))
	_, err = b.reconcile()
	require.ErrorContains(t, err, "is not a directory")

	for _, dir := range []string{"", "srv", "/srv/", "/srv/../etc"} {
		_, err := New([]string{"/srv/one", dir})
		require.ErrorContains(t, err, "--nfs-export", dir)
	}
}

// While no project can be recorded, directories that have one keep it, and their limits follow their marks.
func TestRecordsThatCannotBeWritten(t *testing.T) {
	b := newBed(t)
	b.make(1, volume.MiB)
	require.Equal(t, Report{Asked: 1, Held: 1}, b.pass())
	inTheWay := b.path(nfsmark.Dir, "."+recordFile)
	require.NoError(t, os.MkdirAll(filepath.Join(inTheWay, "x"), 0o700))
	b.make(2, volume.MiB)
	b.mark(1, 2*volume.MiB)
	r := b.pass()
	require.Equal(t, []int{2, 1, 1}, []int{r.Asked, r.Held, len(r.Problems)})
	require.Contains(t, r.Problems[0], directory(2)+" has no project: write "+recordPath)
	require.Equal(t, limitOf(2*volume.MiB), b.fake.limits[firstProject])
	require.Zero(t, b.project(2))
	require.NoError(t, os.RemoveAll(inTheWay))
	require.Equal(t, Report{Asked: 2, Held: 2}, b.pass())
	require.Equal(t, firstProject+1, b.project(2))
}
