//go:build cluster

package cluster_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/cluster"
)

// A server in the cluster's network is reachable for pods and for this process.
func TestS3(t *testing.T) {
	slots.Parallel(t, 0)
	ctx := deadline(t, patience)
	server, err := shared.StartS3(ctx, 9000)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	require.NoError(t, server.MakeBucket(ctx, "data", false))
	_, err = server.Put(ctx, "data", "key", []byte("content"), true)
	require.NoError(t, err)
	content, err := server.Get(ctx, "data", "key")
	require.NoError(t, err)
	require.Equal(t, "content", string(content))
	// The pod does not read the object, but checks that it reaches the server, which requires a
	// signature.
	kubectl(ctx, t, "run", "s3", "--image="+cluster.BusyboxImage, "--image-pull-policy=Never", "--restart=Never", "--quiet",
		"--command", "--", "sh", "-c", "wget -O- "+server.Endpoint+"/data/key 2>&1 | grep Forbidden")
	kubectl(ctx, t, "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/s3", patiently)
	require.Contains(t, kubectl(ctx, t, "logs", "s3"), "403 Forbidden")
	kubectl(ctx, t, "delete", "pod", "s3")
}
