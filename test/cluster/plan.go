package cluster

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/flexlvm/flexlvm/test/vm"
)

// plan is the supervisor's work: the network to create, and the programs to run in it.
type plan struct {
	// Network is the input of ip -batch.
	Network []string
	// Control programs are started in order, each once the previous one is ready.
	Control []program
	// Nodes are started in parallel.
	Nodes []program
}

type program struct {
	Name string
	vm.Program
	// Ready is a URL that returns 200 once the program is ready.
	Ready string
	// Again restarts the program after a successful exit. This is how a machine reboots: an emulated machine is
	// slow after a reset in the same process.
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

// networkPlan returns the commands that create a bridge with a tap device for each node.
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
