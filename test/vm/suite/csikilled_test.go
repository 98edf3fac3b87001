//go:build vm

package suite

import (
	"os"
	"testing"

	"github.com/flexlvm/flexlvm/test/vm"
)

// TestCSIDriverKilled runs the tests of internal/csidoor that kill the driver after each step, those of
// encrypted volumes, which only that driver mounts, and those of health, for which one disk can be made
// to fail. FLEXLVM_CSIDOOR_TESTS selects some of them.
func TestCSIDriverKilled(t *testing.T) {
	slots.Parallel(t, 135)
	binary := build(t, "csidoor.test", "test", "-c", "-tags", "vm")
	tests := []string{"Killed", "Encrypted", "HealthOf"}
	if some := os.Getenv("FLEXLVM_CSIDOOR_TESTS"); some != "" {
		tests = []string{some}
	}
	m := start(t, vm.Config{Disks: disks()[:3], Files: map[string]string{"/csidoor.test": binary}})
	run(t, m, nil, "vgcreate", "--yes", "flexlvm-test", "/dev/vda", "/dev/vdb")
	runTests(t, m, []string{"FLEXLVM_CAMPAIGN=" + os.Getenv("FLEXLVM_CAMPAIGN")}, []string{"/csidoor.test"}, tests...)
}
