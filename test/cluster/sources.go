package cluster

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strconv"

	"github.com/flexlvm/flexlvm/test/built"
	"github.com/flexlvm/flexlvm/test/oci"
	"github.com/flexlvm/flexlvm/test/served"
)

// StartRegistry starts a real registry beside the control plane, which pods reach at its Host. It ends with Stop or
// with this process.
func (c *Cluster) StartRegistry(ctx context.Context, port int) (*oci.Registry, error) {
	registry, err := oci.Start(ctx, c.at(port), c.log)
	if err != nil {
		return nil, fmt.Errorf("start registry in the cluster's network: %w", err)
	}
	return registry, nil
}

// StartHub starts a small Hub of models and datasets (test/hub), and a server of the folder files/, beside the
// control plane. It serves its large files on the next port. It ends with the returned function or with this
// process.
func (c *Cluster) StartHub(ctx context.Context, port int, dir, token string) (endpoint string, stop func() error, err error) {
	binary := filepath.Join(dir, "serve")
	if err := built.Program(ctx, binary, "./test/hub/serve"); err != nil {
		return "", nil, err
	}
	blobs := net.JoinHostPort(controlAddress, strconv.Itoa(port+1))
	at := c.at(port)
	at.Env = []string{"HUB_TOKEN=" + token}
	program, err := served.Start(ctx, at, "/files/", func(address string) []string {
		return []string{binary, "--address", address, "--blobs", blobs, "--dir", dir}
	})
	if err != nil {
		return "", nil, fmt.Errorf("start Hub in the cluster's network: %w", err)
	}
	return "http://" + program.Address, program.Stop, nil
}

// at returns the configuration of a server on a port beside the control plane.
func (c *Cluster) at(port int) served.Config {
	return served.Config{Address: net.JoinHostPort(controlAddress, strconv.Itoa(port)), Command: c.Command, Dial: c.Dial}
}
