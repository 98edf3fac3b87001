//go:build vm

package nfsquota

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/nfsmark"
	"github.com/flexlvm/flexlvm/internal/quota"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// test/vm/suite runs these tests in a virtual node, with an empty XFS that is mounted at onXFS with prjquota, and
// then without.
const onXFS = "/srv/export"

func newRealBed(t *testing.T) *bed {
	k, err := New([]string{onXFS})
	require.NoError(t, err)
	return &bed{keeper: k, export: k.exports[0], t: t}
}

// fill writes to a file in a directory until a write fails, at most most bytes.
func (b *bed) fill(name string, most volume.Bytes) (written volume.Bytes, err error) {
	b.t.Helper()
	f, err := os.Create(b.path(name, "fill"))
	require.NoError(b.t, err)
	defer f.Close()
	piece := make([]byte, volume.MiB)
	for written < most {
		n, err := f.Write(piece)
		written += volume.Bytes(n)
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

func projectOf(t *testing.T, dir string) quota.Project {
	t.Helper()
	f, err := os.Open(dir)
	require.NoError(t, err)
	defer f.Close()
	p, err := quota.ProjectOf(f)
	require.NoError(t, err)
	return p
}

// plantDisk creates a device node of the XFS's disk, and opens the disk.
func plantDisk(t *testing.T, node string) *os.File {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Stat("/dev/vda", &st))
	require.NoError(t, unix.Mknod(node, unix.S_IFBLK|0o600, int(st.Rdev)))
	is, err := nodeOf(st.Rdev, []string{"/dev/root", "/dev/null", "/dev/vda"})
	require.NoError(t, err)
	require.Equal(t, "/dev/vda", is)
	_, err = nodeOf(st.Rdev+1, []string{"/dev/vda"})
	require.ErrorContains(t, err, "is a node of device")
	disk, err := os.Open("/dev/vda")
	require.NoError(t, err)
	return disk
}

func TestOnXFS(t *testing.T) {
	b := newRealBed(t)
	b.make(1, 32*volume.MiB)
	b.make(2, volume.MiB)
	dir, err := os.Open(b.path(directory(2)))
	require.NoError(t, err)
	require.NoError(t, quota.EnsureProjectOf(dir, 4711))
	require.NoError(t, dir.Close())
	// A client that is root on the export creates a node of the server's disk in the place of the file for the
	// projects.
	disk := plantDisk(t, b.path(nfsmark.Dir, "."+recordFile))
	r := b.pass()
	start := make([]byte, 4)
	_, err = disk.ReadAt(start, 0)
	require.NoError(t, errors.Join(err, disk.Close()))
	require.Equal(t, "XFSB", string(start), "nothing is written to the disk")
	require.Equal(t, 2, r.Asked)
	require.Equal(t, 1, r.Held)
	require.Len(t, r.Problems, 1)
	require.Contains(t, r.Problems[0], "has project 4711, which flexlvm did not assign")
	require.EqualValues(t, 4711, projectOf(t, b.path(directory(2))))
	first := projectOf(t, b.path(directory(1)))
	require.Equal(t, firstProject, first)

	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(b.path(directory(1)), &st))
	require.Equal(t, 32*volume.MiB, volume.Bytes(st.Blocks)*volume.Bytes(st.Bsize), "df shows the size")
	require.NoError(t, os.MkdirAll(b.path(directory(1), "deep", "er"), 0o755))
	written, err := b.fill(filepath.Join(directory(1), "deep", "er"), 40*volume.MiB)
	require.Error(t, err)
	require.LessOrEqual(t, written, 32*volume.MiB)
	require.GreaterOrEqual(t, written, 31*volume.MiB)
	require.Equal(t, 1, b.pass().Held, "full as it is")

	// Archived as the provisioner does: XFS moves the directory although it is in a project.
	require.NoError(t, os.Rename(b.path(directory(1)), b.path("archived-"+directory(1))))
	b.unmark(1)
	b.pass()
	usage, err := quota.ReadOf("/dev/vda", first)
	require.NoError(t, err)
	require.Equal(t, limitOf(32*volume.MiB), usage.Limit, "as it was")
	b.make(3, volume.MiB)
	b.pass()
	require.Equal(t, first+2, projectOf(t, b.path(directory(3))), "those of the archived files and of the second are not given out again")
	require.NoError(t, os.RemoveAll(b.path("archived-"+directory(1))))
	require.Eventually(t, func() bool { // XFS counts deleted files for a moment
		b.pass()
		u, err := quota.ReadOf("/dev/vda", first)
		return err == nil && u == quota.Usage{}
	}, 30*time.Second, 100*time.Millisecond, "the limit is not lifted")
	b.restored()
}

// restored checks the message about a directory that was restored without its project: a person can run its command.
func (b *bed) restored() {
	t := b.t
	b.mark(4, 16*volume.MiB)
	require.NoError(t, os.MkdirAll(b.path(directory(4), "old"), 0o755))
	_, err := b.fill(filepath.Join(directory(4), "old"), 4*volume.MiB)
	require.NoError(t, err)
	problems := strings.Join(b.pass().Problems, "\n")
	command := regexp.MustCompile(`xfs_quota -x -c 'project -s .*`).FindString(problems)
	require.NotEmpty(t, command, problems)
	out, err := exec.CommandContext(t.Context(), "sh", "-c", command).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, 2, b.pass().Held)
	written, err := b.fill(directory(4), 40*volume.MiB)
	require.Error(t, err)
	require.LessOrEqual(t, written, 12*volume.MiB, "what was there before counts")
}

func TestWithoutQuotas(t *testing.T) {
	b := newRealBed(t)
	r, err := b.reconcile()
	require.ErrorContains(t, err, "is mounted without project quota; unmount it and mount it with the option prjquota")
	require.Equal(t, 3, r.Asked)
	require.Zero(t, r.Held)
	require.FileExists(t, b.path(nfsmark.Dir, recordFile))
}
