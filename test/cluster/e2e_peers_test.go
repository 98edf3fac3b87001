//go:build cluster

package cluster_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// A second node copies a dataset from the first, although nothing is left of it in its source,
// and nobody sees the token.
func TestDatasetFromAPeer(t *testing.T) {
	t.Parallel()
	l := newLibrary(t, "peers")
	token := strings.Repeat("0123456789abcdef", 4)
	require.NoError(t, l.apply(fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: peers}\nstringData: {token: %s}\n", token)))
	l.bucket("paper", 40*mib, 1*mib, 100, 1)
	manifest := func(replicas int) string {
		return l.dataset("paper", "S3", "paper", replicas, "peersSecretName: peers")
	}
	require.NoError(t, l.apply(manifest(1)))
	vm := l.until("paper", loaded)
	first := l.bearing(vm)
	require.Len(t, first, 1)
	for key := range l.sums {
		require.NoError(t, l.server.Remove(l.ctx, "paper", key))
	}

	require.NoError(t, l.apply(manifest(2)))
	vm = l.until("paper", func(vm flexlvmv1.VolumeManager) string {
		if missing := loaded(vm); missing != "" || len(vm.Status.Volumes[0].Nodes) != 2 {
			return missing + " of two replicas"
		}
		return ""
	})
	require.Equal(t, []string{"node1", "node2"}, l.bearing(vm))
	require.Equal(t, "sha256: 4", vm.Status.Volumes[0].Nodes[1].Checked)
	for _, node := range []string{"node1", "node2"} {
		l.reader("on-"+node, vm, node)
		require.Equal(t, l.sums, l.read("on-"+node), node)
	}
	l.until("paper", func(flexlvmv1.VolumeManager) string { // nobody wants it any more
		return strings.TrimSpace(l.kubectl("get", "jobs", "-l", "flexlvm.io/role=serve", "-o", "name"))
	})
	require.NotContains(t, l.kubectl("get", "vm,jobs,pods,events", "-o", "yaml"), token)
	require.NotContains(t, l.kubectl("logs", "job/paper-data-1"), token)
	l.kubectl("delete", "pod/on-node1", "pod/on-node2")
	l.kubectl("delete", "vm", "paper", "--timeout=240s")
}
