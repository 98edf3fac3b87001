package nfsquota

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/nfsmark"
	"github.com/flexlvm/flexlvm/internal/quota"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// beside adds an export on the same file system to the keeper of b.
func (b *bed) beside(dir string) *bed {
	b.t.Helper()
	k, err := New([]string{dir})
	require.NoError(b.t, err)
	k.exports[0].open = b.open
	b.keeper.exports = append(b.keeper.exports, k.exports...)
	return &bed{keeper: k, export: k.exports[0], t: b.t, fake: b.fake}
}

func (b *bed) record(content string) {
	b.t.Helper()
	require.NoError(b.t, os.WriteFile(b.path(nfsmark.Dir, recordFile), []byte(content), 0o600))
}

// Exports on the same file system never get the same project, even before any of the directories exists, when the
// quotas do not show which projects are in use.
func TestExportsOnOneFileSystem(t *testing.T) {
	one := newBed(t)
	two := one.beside(t.TempDir())
	one.mark(1, volume.MiB)
	two.mark(2, volume.MiB)
	pass := func(held int) (of [2]Report) {
		for i, r := range one.keeper.Reconcile(t.Context()) {
			require.NoError(t, r.Err)
			require.Equal(t, held, r.Held, r.Problems)
			of[i] = r
		}
		return of
	}
	pass(0)
	for _, b := range []*bed{one, two} {
		require.FileExists(t, b.path(nfsmark.Dir, recordFile))
	}
	require.NoError(t, errors.Join(os.Mkdir(one.path(directory(1)), 0o777), os.Mkdir(two.path(directory(2)), 0o777)))
	pass(1)
	require.Equal(t, firstProject, one.project(1))
	require.Equal(t, firstProject+1, two.project(2))

	// The record was copied from the other export: neither directory gets the project again.
	one.fake.dirs = nil
	two.record(fmt.Sprintf(`{"%s":{"directory":"%s","project":%d}}`, volumeName(2), directory(2), firstProject))
	for _, r := range pass(0) {
		require.Contains(t, strings.Join(r.Problems, "\n"), "as well; correct one of them by hand")
	}

	// While the projects of the other export are unknown, none is chosen.
	two.record("{")
	one.make(3, volume.MiB)
	reports := one.keeper.Reconcile(t.Context())
	require.ErrorContains(t, reports[1].Err, "is not known")
	require.Equal(t, 1, reports[0].Held)
	require.Len(t, reports[0].Problems, 1)
	require.Contains(t, reports[0].Problems[0], "no project is chosen for it while those of NFS export "+two.dir)
}

// A project whose record could not be written is given to no other export, because the record may be on disk.
func TestWriteInDoubtBesideAnotherExport(t *testing.T) {
	one := newBed(t)
	two := one.beside(t.TempDir())
	one.make(1, volume.MiB)
	two.make(2, volume.MiB)
	one.write = func(root *os.Root, name string, what any) error {
		return errors.Join(nfsmark.WriteJSON(root, name, what), errors.New("no answer"))
	}
	reports := one.keeper.Reconcile(t.Context())
	require.Len(t, reports[0].Problems, 1)
	require.Contains(t, reports[0].Problems[0], "has no project: write "+recordPath+": no answer")
	require.Equal(t, 1, reports[1].Held)
	require.Equal(t, firstProject+1, two.project(2))
	for _, r := range one.keeper.Reconcile(t.Context()) {
		require.NoError(t, r.Err)
		require.Equal(t, 1, r.Held, r.Problems)
	}
	require.Equal(t, firstProject, one.project(1))
}

func TestOneDirectoryByTwoPaths(t *testing.T) {
	b := newBed(t)
	b.make(1, volume.MiB)
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(b.dir, link))
	b.beside(link)
	reports := b.keeper.Reconcile(t.Context())
	require.NoError(t, reports[0].Err)
	require.Equal(t, 1, reports[0].Held)
	require.ErrorContains(t, reports[1].Err, "is the same directory as "+b.dir)
	require.Zero(t, reports[1].Asked)
	require.Equal(t, 1, b.fake.sets)
}

// A forged record of a project that is in use does not lift its limit.
func TestForgedRecord(t *testing.T) {
	b := newBed(t)
	b.make(1, volume.MiB)
	b.fake.used[firstProject+9] = true
	b.fake.limits[firstProject+9] = limitOf(volume.GiB)
	b.record(fmt.Sprintf(`{"%s":{"directory":"%s","project":%d}}`, volumeName(2), directory(2), firstProject+9))
	require.Equal(t, Report{Asked: 1, Held: 1}, b.pass())
	require.Equal(t, limitOf(volume.GiB), b.fake.limits[firstProject+9])
	require.Equal(t, firstProject, b.project(1))
}

func TestNoProjectIsFree(t *testing.T) {
	taken := map[quota.Project]bool{7: true, 8: true, 10: true}
	p, err := lowestFree(7, 10, taken)
	require.NoError(t, err)
	require.EqualValues(t, 9, p)
	taken[9] = true
	_, err = lowestFree(7, 10, taken)
	require.ErrorContains(t, err, "are in use in this file system")
}

// The maximum number of records can be read, and one more is a problem of its own volume only.
func TestMaxRecords(t *testing.T) {
	b := newBed(t)
	b.make(1, volume.MiB)
	all := records{volumeName(1): {Directory: directory(1), Project: firstProject}}
	for n := 2; len(all) < maxRecords; n++ {
		name := directory(n)
		all[volumeName(n)] = record{strings.Repeat("x", nfsmark.MaxName-len(name)) + name, firstProject + quota.Project(n)}
	}
	content, err := json.Marshal(all)
	require.NoError(t, err)
	require.Less(t, len(content), int(maxContent))
	b.record(string(content))
	b.make(maxRecords+1, volume.MiB)
	r := b.pass()
	require.Equal(t, 1, r.Held)
	require.Len(t, r.Problems, 1)
	require.Contains(t, r.Problems[0], "the most that it can hold")
	require.Equal(t, Report{Asked: 2, Held: 2}, b.pass(), "the others are gone")
	b.record("")
	require.NoError(t, os.Truncate(b.path(nfsmark.Dir, recordFile), int64(maxContent)+1))
	_, err = b.reconcile()
	require.ErrorContains(t, err, "is larger than 16 MiB")
}

// If an export had volumes, an empty directory in its place is an error.
func TestExportThatIsGone(t *testing.T) {
	b := newBed(t)
	b.keeper.exports[0].dir = b.path("export")
	require.Zero(t, b.pass(), "this node is not the server")
	require.NoError(t, os.Mkdir(b.dir, 0o755))
	require.Zero(t, b.pass(), "nor is it without volumes")
	b.make(1, volume.MiB)
	require.Equal(t, Report{Asked: 1, Held: 1}, b.pass())
	for _, empty := range []func() error{
		func() error { return os.Rename(b.path(nfsmark.Dir), b.path("away")) },
		func() error { return os.RemoveAll(b.dir) },
	} {
		require.NoError(t, empty())
		for range 2 {
			r, err := b.reconcile()
			require.ErrorContains(t, err, "there is no .flexlvm in it any more")
			require.Equal(t, Report{Asked: 1}, r)
		}
	}
}

// The mount of another server's export is not read, because that server may not respond.
func TestExportOfAnotherServer(t *testing.T) {
	b := newBed(t)
	b.make(1, volume.MiB)
	b.keeper.mounts = func() ([]mount.Point, error) {
		return []mount.Point{{Path: "/", Type: "xfs"}, {Path: b.dir, Type: "nfs4"}}, nil
	}
	require.Zero(t, b.pass())
	require.Zero(t, b.seen)
	require.False(t, b.local)
	b.keeper.mounts = func() ([]mount.Point, error) { return nil, errors.New("no table") }
	_, err := b.reconcile()
	require.ErrorContains(t, err, "no table")
}

func TestOnNFS(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "deep"), 0o755))
	for name, target := range map[string]string{"abs": dir + "/server/x", "rel": "../server", "round": "round", "home": "../own"} {
		require.NoError(t, os.Symlink(target, filepath.Join(dir, "deep", name)))
	}
	points := []mount.Point{
		{Path: "/", Type: "ext4"},
		{Path: dir + "/server", Type: "xfs"}, {Path: dir + "/server", Type: "nfs4"}, // mounted over the one before
		{Path: dir + "/own", Type: "nfs"}, {Path: dir + "/own", Type: "xfs"},
	}
	for path, want := range map[string]bool{
		"/": false, dir: false, dir + "/none/at/all": false, dir + "/server": true, dir + "/server/below/it": true, dir + "/servers": false,
		dir + "/own": false, dir + "/deep/abs": true, dir + "/deep/rel/x": true, dir + "/deep/home": false,
	} {
		is, err := onNFS(points, path)
		require.NoError(t, err, path)
		require.Equal(t, want, is, path)
	}
	_, err := onNFS(points, dir+"/deep/round")
	require.ErrorContains(t, err, "too many links")
}
