//go:build cluster

package gc_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// testControlGroup checks that the host's programs that the daemon starts are accounted to a control
// group of the host, and not to that of the daemon's pod.
func (d *daemonTest) testControlGroup(t *testing.T) {
	const used = "awk '/^usage_usec/ {print $2}' /sys/fs/cgroup/flexlvm/cpu.stat"
	usage := func() int {
		t.Helper()
		n, err := strconv.Atoi(strings.TrimSpace(d.onNode(t, used)))
		require.NoError(t, err)
		return n
	}
	before := usage()
	require.Positive(t, before)
	d.moreRounds(t, 2, 0)
	require.Greater(t, usage(), before, "a round asks LVM")
	require.Equal(t, "0::/flexlvm", strings.TrimSpace(d.onNode(t, "sh -c 'echo $$ >/sys/fs/cgroup/flexlvm/cgroup.procs && cat /proc/self/cgroup'")), "it is one of the host's")
}
