//go:build vm

package suite

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/vm"
)

// crashNode starts a node on which test/vm/crash records the life of volumes and cuts the power of the
// disk below them. The node itself stays up.
func crashNode(t *testing.T) *vm.Machine {
	t.Helper()
	return start(t, vm.Config{
		// The disks: recorded, log, replayed, and changed by the checks.
		Disks: []vm.Disk{{Size: 3 << 30, Unsafe: true}, {Size: 16 << 30, Unsafe: true}, {Size: 3 << 30, Unsafe: true}, {Size: 4 << 30, Unsafe: true}},
		Files: map[string]string{"/crash": build(t, "crash", "build"), "/fetch": build(t, "fetch", "build")},
	})
}

// TestPowerCutsThatLoseTheCache simulates a disk that loses all or some of what was not flushed. A
// killed machine does not lose that, because the host still writes it. A failure prints the seed and
// the step, which --seed and --during of test/vm/crash accept.
func TestPowerCutsThatLoseTheCache(t *testing.T) {
	slots.Group(t)
	// Both drivers in turn, and in a campaign each alone, too.
	doors, points, seed := []string{"both"}, 30, uint64(1)
	if inFull() {
		doors, points, seed = []string{"both", "flex", "csi"}, 170, rand.Uint64()
	}
	cut := func(name string, seconds, points int, args ...string) {
		t.Run(name, func(t *testing.T) {
			slots.Parallel(t, seconds)
			crash := append([]string{"/crash", "--points", strconv.Itoa(points), "--seed", strconv.FormatUint(seed, 10)}, args...)
			run(t, crashNode(t), nil, crash...)
		})
	}
	for _, door := range doors {
		cut(door, 35, points, "--door", door)
	}
	cut("ext4", 30, points/2, "--fstype", "ext4")
	// A growth writes to two disks. A wrong order shows only if a pod mounts the volume before the
	// growth is repeated, as kubelet does for CSI.
	cut("growth", 20, 4*points, "--steps", "7", "--during", "expand linear", "--door", "csi")
}

// TestMissingFlushesAreFound makes the mistakes that TestPowerCutsThatLoseTheCache must find: a program
// that does not fsync, and a disk that gets no flushes.
func TestMissingFlushesAreFound(t *testing.T) {
	slots.Parallel(t, 0)
	m := crashNode(t)
	crash := func(args ...string) (string, int) {
		res, err := m.Exec(t.Context(), vm.Command{Args: append([]string{"/crash", "--steps", "3", "--points", "12", "--quiet"}, args...)})
		require.NoError(t, err)
		return string(res.Stdout) + string(res.Stderr), res.ExitCode
	}
	out, code := crash("--omit", "fsync")
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "volume linear: what was fsynced is lost")
	out, code = crash("--omit", "flush")
	require.Equal(t, 1, code, out)
	// The writes that a torn point keeps differ between recordings, and so does the first loss that is
	// found.
	require.Regexp(t, "FAILED: (volume (linear|thin)|the node daemon's round): ", out)
}
