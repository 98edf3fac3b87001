package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"

	"github.com/flexlvm/flexlvm/test/vm"
)

// The network, see the package comment. The node's scripts in node/ repeat some of these values.
const (
	controlAddress   = "10.88.0.1"
	apiServerAddress = controlAddress + ":6443"
	serviceRange     = "10.96.0.0/16"
	apiServiceIP     = "10.96.0.1"
	bridge           = "nodes"
)

// Config describes a cluster. The zero value is a cluster of one node.
type Config struct {
	// Name names the cluster's folder; default "test-<pid>".
	Name string
	// Nodes is the number of nodes, 1 to 9; default 1. They are named node1…
	Nodes int
	// ControlPlaneOnly starts no nodes, which takes only a few seconds. Tests then create Node objects themselves.
	ControlPlaneOnly bool
	// MemoryMiB is the memory of each node; default 2048.
	MemoryMiB int
	// DiskSize is the size of each node's empty disk, /dev/vdb, in bytes;
	// default 8 GiB. It is sparse.
	DiskSize int64
	// BlankDisks is the number of further empty disks per node, of 4 GiB each. Their serial numbers are blank-1,
	// blank-2 and so on.
	BlankDisks int
	// Images are archives, in the format of `docker save` or `make image`, that every node imports before its
	// kubelet starts.
	Images []string
	// ControllerManagerFlags are added to the controller manager's default flags.
	ControllerManagerFlags []string
	// Detach lets the cluster outlive this process.
	Detach bool
	// FindBackend finds the nodes' backend; default vm.FindBackend.
	FindBackend func(context.Context, io.Writer) (vm.Backend, error)
	// Log receives a line for each step of starting; default none.
	Log io.Writer
}

var clusterName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,30}$`)

func (c Config) withDefaults() (Config, error) {
	if c.Name == "" {
		c.Name = fmt.Sprintf("test-%d", os.Getpid())
	}
	if c.Nodes == 0 && !c.ControlPlaneOnly {
		c.Nodes = 1
	}
	if c.MemoryMiB == 0 {
		c.MemoryMiB = 2048
	}
	if c.DiskSize == 0 {
		c.DiskSize = 8 << 30
	}
	if c.FindBackend == nil {
		c.FindBackend = vm.FindBackend
	}
	if c.Log == nil {
		c.Log = io.Discard
	}
	for i, tar := range c.Images {
		abs, err := filepath.Abs(tar)
		if err != nil {
			return c, fmt.Errorf("find image %s: %w", tar, err)
		}
		if _, err := os.Stat(abs); err != nil {
			return c, fmt.Errorf("find image: %w", err)
		}
		c.Images[i] = abs
	}
	return c, c.validate()
}

func nodeName(i int) string    { return fmt.Sprintf("node%d", i) }
func nodeAddress(i int) string { return fmt.Sprintf("10.88.0.%d", 10+i) }
func podRange(i int) string    { return fmt.Sprintf("10.244.%d.0/24", i) }

func (c Config) validate() error {
	switch {
	case !clusterName.MatchString(c.Name):
		return fmt.Errorf("start cluster: name %q: use lower case letters, digits and dashes", c.Name)
	case c.ControlPlaneOnly && c.Nodes != 0:
		return fmt.Errorf("start cluster: %d nodes beside ControlPlaneOnly", c.Nodes)
	case !c.ControlPlaneOnly && (c.Nodes < 1 || c.Nodes > 9):
		return fmt.Errorf("start cluster: %d nodes: use 1 to 9", c.Nodes)
	case os.Geteuid() != 0:
		return errors.New("start cluster: it needs namespaces and tap devices; run it as root")
	}
	return nil
}
