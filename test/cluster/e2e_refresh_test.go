//go:build cluster

package cluster_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/test/await"
)

// Each node gets a dataset's next version. A running pod keeps the version with which it started, a new
// pod gets the new one, and the space of a version without readers is freed.
func TestDatasetIsRefreshed(t *testing.T) {
	slots.Parallel(t, 107)
	l := newLibrary(t, "refresh")
	l.bucket("atlas", slices.Concat([]int{24 * mib}, slices.Repeat([]int{256 << 10}, 8))...)
	require.NoError(t, l.apply(l.dataset("atlas", "S3", "atlas", 2)))
	vm := l.until("atlas", loaded)
	first := vm.Status.Summary.Version
	require.Len(t, first, 12, "all nodes hold the same")
	old := maps.Clone(l.sums)
	l.reader("old", vm, "node1")
	require.Equal(t, old, l.read("old"))

	key := slices.Sorted(maps.Keys(l.sums))[0]
	for name, text := range map[string]string{key: "changed", "part-9/new": "new"} {
		_, err := l.server.Put(l.ctx, "atlas", name, []byte(text), true)
		require.NoError(t, err)
		sum := sha256.Sum256([]byte(text))
		l.sums[name] = hex.EncodeToString(sum[:])
	}
	l.kubectl("annotate", "vm", "atlas", replica.AnnotationRefresh+"=1")
	vm = l.until("atlas", func(vm flexlvmv1.VolumeManager) string {
		require.Equal(t, flexlvmv1.StateRunning, vm.Status.State)
		require.EqualValues(t, 2, vm.Status.Volumes[0].ReadyReplicas, "pods can come all the time")
		if v := vm.Status.Volumes[0]; len(v.Versions) != 1 || v.Versions[first] != 0 {
			return fmt.Sprintf("versions: %v", v.Versions)
		}
		return ""
	})
	t.Log(l.kubectl("get", "vm", "atlas", "-o", "wide"))
	require.Equal(t, old, l.read("old"), "it sees what it saw")
	require.EqualValues(t, 1, nodeOf(vm, "node1").OldVersions)
	l.reader("new", vm, "node1")
	l.reader("other", vm, "node2")
	require.Equal(t, l.sums, l.read("new"))
	require.Equal(t, l.sums, l.read("other"))
	require.NotContains(t, l.exec("new", "ls -A /data/.flexlvm"), "versions", "of the others nothing is seen")
	_, both := l.df("new")
	require.Less(t, both, int64(40*mib), "what did not change is there once")

	// The next loader finds that the old version has no readers. It is requested here; without a
	// request it runs later. Kubelet unmounts only after the pod is gone.
	uid := l.kubectl("get", "pod", "old", "-o", "jsonpath={.metadata.uid}")
	l.kubectl("delete", "pod", "old")
	await.Until(t, patience, func() string {
		mounts, err := shared.Node(l.ctx, "node1", "cat", "/proc/self/mountinfo")
		require.NoError(t, err, mounts)
		return await.Missing(!strings.Contains(mounts, uid), "the old pod's volume is still mounted")
	})
	l.kubectl("annotate", "vm", "atlas", "--overwrite", replica.AnnotationRefresh+"=2")
	l.until("atlas", func(vm flexlvmv1.VolumeManager) string {
		if n := nodeOf(vm, "node1").OldVersions + nodeOf(vm, "node2").OldVersions; n != 0 {
			return fmt.Sprintf("%d old versions are there", n)
		}
		return ""
	})
	require.Equal(t, l.sums, l.read("new"))
	require.Contains(t, l.kubectl("get", "events", "-o", "jsonpath={range .items[*]}{.reason} {.message}{\"\\n\"}{end}"), "RefreshComplete")
}

func nodeOf(vm flexlvmv1.VolumeManager, node string) flexlvmv1.ReplicaStatus {
	for _, r := range vm.Status.Volumes[0].Nodes {
		if r.Node == node {
			return r
		}
	}
	return flexlvmv1.ReplicaStatus{}
}
