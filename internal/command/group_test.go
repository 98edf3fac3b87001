package command

import (
	"os"
	"testing"

	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/require"
)

// Where no program can be started in the group, because the kernel cannot do that or the
// group is gone, programs run all the same, and it is said once.
func TestProgramsRunWhereTheirGroupCannotBe(t *testing.T) {
	host := script(t, "lvs", `echo out`)
	log, said := logtest.NewNullLogger()
	host.Unkillable.(*runner).log = log
	dir, err := os.Open(t.TempDir()) // which is no control group
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
