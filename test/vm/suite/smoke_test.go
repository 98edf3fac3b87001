//go:build vm

package suite

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/vm"
)

const driver = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/flexlvm.io~flexlvm/flexlvm"

// smoke starts a node with the driver in kubelet's plugin directory, and the smoke tests.
func smoke(t *testing.T, udev bool) *vm.Machine {
	t.Helper()
	root, err := vm.SourceDir()
	require.NoError(t, err)
	return start(t, vm.Config{
		Udev:  udev,
		Disks: []vm.Disk{{Size: 2 << 30, Unsafe: true}, {Size: 3 << 30, Unsafe: true}},
		Files: map[string]string{
			driver:   build(t, "flexlvm", "build", "-trimpath", "-ldflags", "-s -w -E main.entry"), // as tools/release links it
			"/smoke": filepath.Join(root, "test", "smoke"),
		},
	})
}

// TestSmoke runs all of the operators' tests on a spare disk.
func TestSmoke(t *testing.T) {
	slots.Parallel(t, 0)
	m := smoke(t, false)
	run(t, m, []string{"GODEBUG=inittrace=1"}, "sh", "-exc", `[ "$(`+driver+` init 2>&1 | head -c 1)" = "{" ]`)
	run(t, m, nil, "sh", "/smoke/run.sh", "--device", "/dev/vda")
}

// TestSmokeOnAFile runs some of them beside udev with a file as their disk, and checks that they leave
// nothing behind, also after an interrupt.
func TestSmokeOnAFile(t *testing.T) {
	slots.Parallel(t, 0)
	m := smoke(t, true)
	interrupted := "1 3" // seconds after the start
	if inFull() {
		interrupted = "1 2 3 4 6"
	}
	run(t, m, nil, "sh", "-exc", `
		modprobe loop
		mkfs.ext4 -q /dev/vdb
		mount /dev/vdb /mnt
		for test in mount refuse operator; do
			sh /smoke/$test.sh --file /mnt/disk
		done
		interrupted=
		for seconds in `+interrupted+` 12 30; do
			if [ $seconds -gt 6 ] && grep -q '^ok ' /run/all; then break; fi # only where the machine is too slow for the others
			code=0
			timeout -s INT $seconds sh /smoke/mount.sh --device /dev/vda >/run/interrupted || code=$?
			cat /run/interrupted | tee -a /run/all
			case $code in
			124) interrupted=yes ;;
			0) ;; # a fast machine is through by then
			*) exit 1 ;;
			esac
		done
		grep -q '^ok ' /run/all
		test $interrupted = yes
		test "$(ls /mnt)" = lost+found
		test -z "$(ls /var/tmp /var/lib/flexlvm/volumes | grep smoke)"
		test -z "$(losetup --all)"
		test -z "$(vgs --noheadings; pvs --noheadings)"
		test -z "$(wipefs --noheadings /dev/vda)"
		! grep smoke /proc/self/mounts`)
}
