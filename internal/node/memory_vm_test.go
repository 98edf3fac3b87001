//go:build vm

package node

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// Volumes are created, grown and unmounted while a process uses all of the node's memory and is killed for
// that by the kernel.
func TestMemoryRunsOut(t *testing.T) {
	m, rounds := newMachine(t), 1
	if inFull() {
		rounds = 2
	}
	for round := range rounds {
		hog := exec.Command("sh", "-c", "echo 1000 >/proc/self/oom_score_adj && exec tail /dev/zero")
		require.NoError(t, hog.Start())
		t.Cleanup(func() { _ = hog.Process.Kill() }) // it has already ended if the test passed
		ended := make(chan error, 1)
		go func() { ended <- hog.Wait() }()

		turns := 0
		for running := true; running; turns++ {
			require.Less(t, turns, 100, "nobody has killed who took all memory")
			m.useVolume(fmt.Sprintf("v%d-%d", round, turns))
			select {
			case err := <-ended:
				require.EqualError(t, err, "signal: killed", "whoever took the memory")
				running = false
			default:
			}
		}
		t.Logf("%d volumes were made before the kernel killed who took all memory", turns)
	}
}

// useVolume creates a volume, grows it while it is mounted, and reads back its file.
func (m *machine) useVolume(name string) {
	m.t.Helper()
	s := m.volume(name, 64*volume.MiB)
	target := m.mount(s, "a")
	require.NoError(m.t, os.WriteFile(target+"/data", []byte(name), 0o600))
	require.NoError(m.t, m.Expand(m.ctx(), s, 96*volume.MiB))
	m.unmount(target)
	s.Size = 96 * volume.MiB
	target = m.mount(s, "a")
	data, err := os.ReadFile(target + "/data")
	require.NoError(m.t, err)
	require.Equal(m.t, name, string(data))
	m.unmount(target)
}
