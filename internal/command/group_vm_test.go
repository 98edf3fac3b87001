//go:build vm

package command_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/cgroup"
	"github.com/flexlvm/flexlvm/internal/command"
)

// Programs run in the host's group, so the daemon's limits on CPU and memory do not apply to them.
func TestGroupOfTheHost(t *testing.T) {
	pod := filepath.Join(cgroup.Root, "pod")
	require.NoError(t, os.MkdirAll(pod, 0o755))
	move := func(to string) {
		require.NoError(t, os.WriteFile(filepath.Join(to, "cgroup.procs"), []byte(fmt.Sprint(os.Getpid())), 0o600))
	}
	move(pod)
	t.Cleanup(func() {
		move(cgroup.Root)
		require.NoError(t, os.Remove(pod))
	})
	dir, err := cgroup.New(cgroup.Root).OpenOrCreate(cgroup.HostPrograms)
	require.NoError(t, err)
	defer func() { _ = dir.Close() }()
	host := command.New("", logrus.New())
	out, err := command.In(host.Unkillable, dir).Command("cat", "/proc/self/cgroup").Output()
	require.NoError(t, err)
	require.Equal(t, "0::/"+cgroup.HostPrograms+"\n", string(out))
	out, err = host.Unkillable.Command("cat", "/proc/self/cgroup").Output()
	require.NoError(t, err)
	require.Equal(t, "0::/pod\n", string(out), "without it, they are in that of the daemon")
}
