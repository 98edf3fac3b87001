package cluster

import (
	"context"
	"sync"
)

// nfsExport is the directory that StartNFS exports.
const nfsExport = "/srv/nfs"

var startingNFS sync.Mutex // two calls at the same time would mount and start the server twice, and one would fail

// StartNFS makes a node a real NFS server of version 4 and returns its address and the exported directory:
// read-write for everybody, root not squashed, on an XFS of its own of 2 GiB with project quotas. The node serves
// until it loses power. StartNFS then starts the server again with its existing data.
func (c *Cluster) StartNFS(ctx context.Context, node string) (server, export string, err error) {
	startingNFS.Lock()
	defer startingNFS.Unlock()
	if _, err := c.Node(ctx, node, "/seed/nfs"); err != nil {
		return "", "", err
	}
	address, err := c.Node(ctx, node, "sh", "-c", ". /seed/node.env && printf %s \"$ADDRESS\"")
	return address, nfsExport, err
}
