//go:build vm

package nfsquota

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/nfsmark"
	"github.com/flexlvm/flexlvm/internal/quota"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Run by test/vm/suite in a virtual node, with an empty XFS at onXFS that is mounted with prjquota,
// and then without.
const onXFS = "/srv/export"

func newRealBed(t *testing.T) *bed {
	k, err := New(onXFS)
	require.NoError(t, err)
	return &bed{Keeper: k, t: t}
}

// fill writes to a file in a directory until no more can be written, at most so much.
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

func TestOnXFS(t *testing.T) {
	b := newRealBed(t)
	b.make(1, 32*volume.MiB)
	b.make(2, volume.MiB)
	dir, err := os.Open(b.path(directory(2)))
	require.NoError(t, err)
	require.NoError(t, quota.EnsureProjectOf(dir, 4711))
	require.NoError(t, dir.Close())
	r := b.look()
	require.Equal(t, 2, r.Asked)
	require.Equal(t, 1, r.Held)
	require.Len(t, r.Problems, 1)
	require.Contains(t, r.Problems[0], "has project 4711, which flexlvm did not give it")
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
	require.Equal(t, 1, b.look().Held, "full as it is")

	// Archived as the provisioner does it: XFS moves it although it is in a project.
	require.NoError(t, os.Rename(b.path(directory(1)), b.path("archived-"+directory(1))))
	b.unmark(1)
	b.look()
	written, err = b.fill("archived-"+directory(1), 8*volume.MiB)
	require.NoError(t, err, "limited no more")
	require.Equal(t, 8*volume.MiB, written)
	b.make(3, volume.MiB)
	b.look()
	require.Equal(t, first+2, projectOf(t, b.path(directory(3))), "those of the archived files and of the second are not given out again")

	// As restored without projects: the message says what a person does.
	b.mark(4, 16*volume.MiB)
	require.NoError(t, os.MkdirAll(b.path(directory(4), "old"), 0o755))
	_, err = b.fill(filepath.Join(directory(4), "old"), 4*volume.MiB)
	require.NoError(t, err)
	problems := strings.Join(b.look().Problems, "\n")
	command := regexp.MustCompile(`xfs_quota -x -c 'project -s .*`).FindString(problems)
	require.NotEmpty(t, command, problems)
	out, err := exec.CommandContext(t.Context(), "sh", "-c", command).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, 2, b.look().Held)
	written, err = b.fill(directory(4), 40*volume.MiB)
	require.Error(t, err)
	require.LessOrEqual(t, written, 12*volume.MiB, "what was there before counts")
}

func TestWithoutQuotas(t *testing.T) {
	b := newRealBed(t)
	r, err := b.Look(t.Context())
	require.ErrorContains(t, err, "is mounted without project quota; unmount it and mount it with the option prjquota")
	require.Equal(t, 3, r.Asked)
	require.Zero(t, r.Held)
	require.FileExists(t, b.path(nfsmark.Dir, recordFile))
}
