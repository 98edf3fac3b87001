package command

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/require"
)

// If programs cannot be started in the group, because the kernel does not support it or the group is
// gone, they run outside of it, and this is logged once.
func TestProgramsRunWhereTheirGroupCannotBe(t *testing.T) {
	host := script(t, "lvs", `echo out`)
	log, said := logtest.NewNullLogger()
	host.Unkillable.(*runner).log = log
	dir, err := os.Open(t.TempDir()) // not a control group
	require.NoError(t, err)
	defer func() { _ = dir.Close() }()
	run := In(host.Unkillable, dir)
	for range 2 {
		out, err := run.Command("lvs").CombinedOutput()
		require.NoError(t, err)
		require.Equal(t, "out\n", string(out))
	}
	require.Len(t, said.AllEntries(), 1)
	require.Contains(t, said.LastEntry().Message, "cannot be started in a control group of their own")
	require.Equal(t, dir.Name(), said.LastEntry().Data["group"])
}

// A program that cannot be started anywhere, and a temporary lack of memory or processes, do not count
// against the group: the next program is started in it again.
func TestOtherFailuresLeaveTheGroup(t *testing.T) {
	host := script(t, "lvs", `echo out`)
	log, said := logtest.NewNullLogger()
	host.Unkillable.(*runner).log = log
	dir, err := os.Open(t.TempDir()) // not a control group
	require.NoError(t, err)
	defer func() { _ = dir.Close() }()
	run := In(host.Unkillable, dir)
	group := run.(*runner).group

	nowhere := run.Command("lvs")
	nowhere.SetDir(filepath.Join(dir.Name(), "gone"))
	require.ErrorIs(t, nowhere.Run(), syscall.ENOENT)
	for _, shortage := range []syscall.Errno{syscall.EAGAIN, syscall.ENOMEM} {
		group.refused(log, &os.PathError{Op: "fork/exec", Path: "lvs", Err: shortage})
	}
	_, is := group.fd()
	require.True(t, is)
	require.Empty(t, said.AllEntries())

	require.NoError(t, run.Command("lvs").Run())
	_, is = group.fd()
	require.False(t, is, "that one was refused by the group alone")
	require.Len(t, said.AllEntries(), 1)
}
