//go:build cluster

package provisioner_test

import (
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/overview"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/test/built"
)

// testPlugin runs the plugin as a user does, and compares its answers with what the provisioner then
// does.
func (b *bed) testPlugin(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "kubectl-flexlvm")
	require.NoError(t, built.Program(t.Context(), binary, "./cmd/kubectl-flexlvm"))
	run := func(kubeconfig string, args ...string) (string, error) {
		cmd := b.cluster.Command(t.Context(), append([]string{binary, "--kubeconfig=" + kubeconfig}, args...)...)
		said, err := cmd.CombinedOutput()
		return string(said), err
	}
	ask := func(args ...string) string {
		said, err := run(b.cluster.AdminKubeconfig(), args...)
		require.NoError(t, err, said)
		return said
	}

	s := b.namespace(t, "plugin")
	defer b.reportRoomy(t)
	b.report(t, "sim-1", map[string]volume.Bytes{"flexlvm": 10 * gib})
	b.report(t, "sim-2", map[string]volume.Bytes{"flexlvm": 100 * gib})
	b.report(t, longNode, map[string]volume.Bytes{"flexlvm": 10 * gib})
	b.releaseOn(t, "sim-2", "pvc-old", 60*gib)
	b.offered(t, "flexlvm", "sim-2", within(100*gib))

	require.Contains(t, ask("status"), "3 nodes with ")
	require.Contains(t, ask("status", "--all", "-o", "wide"), "sim-1")
	next := ask("plan")
	require.Contains(t, next, "pvc-old")
	require.Contains(t, next, "later")

	fits := func(size string) map[string]overview.Fit {
		var all []overview.Fit
		require.NoError(t, json.Unmarshal([]byte(ask("plan", "--claim", size, "-o", "json")), &all))
		out := map[string]overview.Fit{}
		for _, f := range all {
			out[f.Node] = f
		}
		require.Len(t, out, 3)
		return out
	}
	before := fits("50Gi")
	require.False(t, before["sim-1"].Fits)
	require.Contains(t, before["sim-1"].Why, "has no room for it")
	require.True(t, before["sim-2"].Fits)
	require.Equal(t, "pvc-old", before["sim-2"].Evictions[0].Name)

	s.sized("data", 50*volume.GiB)
	s.podWith("db", "", "data")
	s.promised(1)
	require.Equal(t, "sim-2", s.volumeOf("data").Labels[pv.LabelNode])

	after := fits("60Gi")
	require.False(t, after["sim-2"].Fits, "what is promised meanwhile counts")
	require.Contains(t, after["sim-2"].Why, "has no room for it")
	require.Contains(t, ask("plan", "--claim", "60Gi", "--nodes", "2"), "fits on 0 of 3 nodes; 2 are needed: 2 too few")

	var listed []overview.Volume
	require.NoError(t, json.Unmarshal([]byte(ask("volumes", "-n", "plugin", "-o", "json")), &listed))
	require.Len(t, listed, 2)
	require.Equal(t, "data", listed[0].Claim)
	require.Equal(t, []string{"db"}, listed[0].Pods)
	require.Equal(t, "sim-2", listed[0].Node)
	require.Equal(t, "pvc-old", listed[1].Name)
	require.EqualValues(t, 1, listed[1].EvictionOrder)
	require.Contains(t, ask("volumes", "--pvc", "data", "-o", "yaml"), "claim: data")

	// The plugin has its user's rights.
	b.kubectl(t, "create", "serviceaccount", "nobody", "-n", system)
	said, err := run(b.accountKubeconfig(t, "nobody"), "status")
	require.Error(t, err)
	require.Contains(t, said, "forbidden")
	said, err = run(b.cluster.AdminKubeconfig(), "plan", "--claim", "1Gi", "--class", "not-there")
	require.Error(t, err)
	require.Contains(t, said, "not-there")
}

// releaseOn makes a simulated node report a released volume of that size.
func (b *bed) releaseOn(t *testing.T, node, name string, room volume.Bytes) {
	t.Helper()
	storage, err := b.storage.NodeStorage(t.Context(), node)
	require.NoError(t, err)
	held := *resource.NewQuantity(int64(room), resource.BinarySI)
	p := &storage.Status.Pools[0]
	p.Free.Sub(held)
	p.Reclaimable = held
	storage.Status.ReleasedCount = 1
	storage.Status.EvictionPolicy = &flexlvmv1.EvictionPolicy{HighThresholdPercent: 100, LowThresholdPercent: 80, MinAge: metav1.Duration{Duration: time.Minute}}
	storage.Status.Released = []flexlvmv1.ReleasedVolume{{
		Pool: "flexlvm", Name: name, State: string(volume.Unreferenced), Namespace: "plugin", Size: held, Room: held, EvictionOrder: 1,
		LastUsed: metav1.NewTime(time.Now().Add(-time.Hour)), Released: metav1.NewTime(time.Now().Add(-time.Hour)),
	}}
	_, err = b.storage.UpdateNodeStorageStatus(t.Context(), storage)
	require.NoError(t, err)
}
