package cluster

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/flexlvm/flexlvm/test/vm"
)

// plan is all that the supervisor does: which network to make and which
// programs to run in it.
type plan struct {
	// Network are lines for ip -batch.
	Network []string
	// Control are started one after the other, each when the one before is
	// ready.
	Control []program
	// Nodes are started at once.
	Nodes []program
}

type program struct {
	Name string
	vm.Program
	// Ready is a URL that answers 200 when the program is ready.
	Ready string
	// Again starts the program again when it has ended well. So a machine
	// reboots: in the same process, an emulated one is slow after a reset.
	Again bool
}

const planFile = "plan.json"

func (p plan) save(dir string) error {
	content, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return fmt.Errorf("write plan: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, planFile), content, 0o644); err != nil {
		return fmt.Errorf("write plan: %w", err)
	}
	return nil
}

func loadPlan(dir string) (plan, error) {
	var p plan
	content, err := os.ReadFile(filepath.Join(dir, planFile))
	if err != nil {
		return p, fmt.Errorf("read plan: %w", err)
	}
	if err := json.Unmarshal(content, &p); err != nil {
		return p, fmt.Errorf("read plan: %w", err)
	}
	return p, nil
}

// networkPlan is a bridge with a tap for each node.
func networkPlan(nodes int) []string {
	lines := []string{
		"link set lo up",
		"link add " + bridge + " type bridge",
		"addr add " + controlAddress + "/24 dev " + bridge,
		"link set " + bridge + " up",
	}
	for i := 1; i <= nodes; i++ {
		lines = append(lines,
			"tuntap add "+nodeName(i)+" mode tap",
			"link set "+nodeName(i)+" master "+bridge+" up",
			"route add "+podRange(i)+" via "+nodeAddress(i))
	}
	return lines
}
