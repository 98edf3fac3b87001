//go:build vm

package suite

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/vm"
)

// crashNode is a node on which test/vm/crash records a life of volumes and cuts the
// power of the disk below them. The node itself lives on.
func crashNode(t *testing.T) *vm.Machine {
	t.Helper()
	return start(t, vm.Config{
		// Recorded, log, replayed, and what checks change there.
		Disks: []vm.Disk{{Size: 3 << 30, Unsafe: true}, {Size: 16 << 30, Unsafe: true}, {Size: 3 << 30, Unsafe: true}, {Size: 4 << 30, Unsafe: true}},
		Files: map[string]string{"/crash": build(t, "crash", "build"), "/fetch": build(t, "fetch", "build")},
	})
}

// TestPowerCutsThatLoseTheCache: unlike a killed machine, which leaves to the host what
// it has written, the disk loses all that was not flushed, or some of it. A failure
// prints the seed, and the step, which --seed and --during of test/vm/crash take.
func TestPowerCutsThatLoseTheCache(t *testing.T) {
	t.Parallel()
	// Both drivers in turns; where time does not matter, each alone, too.
	doors, points, seed := []string{"both"}, 30, uint64(1)
	if inFull() {
		doors, points, seed = []string{"both", "flex", "csi"}, 170, rand.Uint64()
	}
	cut := func(name string, points int, args ...string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			crash := append([]string{"/crash", "--points", strconv.Itoa(points), "--seed", strconv.FormatUint(seed, 10)}, args...)
			run(t, crashNode(t), nil, crash...)
		})
	}
	for _, door := range doors {
		cut(door, points, "--door", door)
	}
	cut("ext4", points/2, "--fstype", "ext4")
	// A growth writes to two disks. A wrong order shows only where a pod mounts the volume before
	// the growth is repeated, as kubelet does for CSI.
	cut("growth", 4*points, "--steps", "7", "--during", "expand linear", "--door", "csi")
}

// TestMissingFlushesAreFound makes the mistakes that TestPowerCutsThatLoseTheCache is
// there to find: a program that does not fsync, and a disk that is never told to flush.
func TestMissingFlushesAreFound(t *testing.T) {
	t.Parallel()
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
	// What a torn point keeps differs from recording to recording, and with it what is
	// missed first.
	require.Regexp(t, "FAILED: (volume (linear|thin)|the node daemon's round): ", out)
}
