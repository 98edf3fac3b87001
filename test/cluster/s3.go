package cluster

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/flexlvm/flexlvm/test/s3"
)

// StartS3 starts a real S3 server beside the control plane, which pods reach at its Endpoint; its methods work in
// this process as well. It listens on the given port of the bridge, stores its data on this machine's disk, and
// ends with Stop or with this process.
func (c *Cluster) StartS3(ctx context.Context, port int) (*s3.Server, error) {
	server, err := s3.Start(ctx, s3.Config{
		Address: net.JoinHostPort(controlAddress, strconv.Itoa(port)),
		Command: c.Command, Dial: c.Dial, Log: c.log,
	})
	if err != nil {
		return nil, fmt.Errorf("start S3 server in the cluster's network: %w", err)
	}
	return server, nil
}
