//go:build cluster

package provisioner_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/staticconfig"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/test/await"
)

// testFromOthers applies the translations of docs/from-others.md for other systems' examples.
func (b *bed) testFromOthers(t *testing.T) {
	s := b.namespace(t, "from-others")
	folder := filepath.Join(b.source, "examples/from-others")
	b.report(t, "sim-1", map[string]volume.Bytes{"flexlvm": roomy, "flexlvm/thinpool": roomy})
	b.reportDevices(t, "sim-1", "flexlvm", roomy/2, roomy/2) // for stripes and mirrors
	t.Cleanup(func() { b.reportRoomy(t) })
	b.kubectl(t, "apply", "--validate=strict", "-n", s.name, "-f", folder)
	t.Cleanup(func() {
		_, err := b.cluster.Kubectl(context.WithoutCancel(t.Context()), "delete", "-n", s.name, "--ignore-not-found", "--wait=false", "-f", folder)
		require.NoError(t, err)
	})
	for claim, want := range map[string]struct{ size, layout, fsType string }{
		"topolvm": {"1Gi", "linear", "xfs"}, "topolvm-thin": {"10Gi", "thin", "xfs"}, "topolvm-ephemeral-data": {"1Gi", "linear", "xfs"},
		"topolvm-striped": {"1Gi", "striped", "xfs"}, "topolvm-raid": {"1Gi", "raid1", "xfs"},
		"lvm-localpv": {"4Gi", "linear", "ext4"}, "local-path": {"128Mi", "linear", "xfs"}, "local-path-rwop": {"128Mi", "linear", "xfs"}, "csilvm": {"1Gi", "raid1", "xfs"},
		"static-claim": {"5Gi", "linear", "xfs"}, "static-gke": {"50Gi", "linear", "xfs"},
		"local-static-0": {"1Gi", "linear", "xfs"}, "local-static-1": {"1Gi", "linear", "xfs"}, "local-2-static-0": {"1Gi", "linear", "xfs"},
		"local-static-together-0": {"1Gi", "linear", "xfs"}, "local-static-together-1": {"1Gi", "linear", "xfs"},
		"elastic-local": {"1Mi", "linear", "xfs"}, "k8s-csi-lvm": {"10Gi", "linear", "xfs"},
		"metalk8s": {"1Gi", "linear", "ext4"}, "localflex": {"1Mi", "linear", "xfs"},
	} {
		v := s.volumeOf(claim)
		capacity := v.Spec.Capacity[corev1.ResourceStorage]
		require.Equal(t, want.size, capacity.String(), claim)
		require.Equal(t, want.layout, persistentvolume.Options(v)["layout"], claim)
		require.Equal(t, want.fsType, persistentvolume.FSType(v), claim)
	}
	s.declaredVolume("metalk8s-declared")
	s.translated("from-static-")
	s.endStatefulSets("static", "static-together")
}

// declaredVolume waits for the PersistentVolume of a LocalVolume that requests 10Gi of ext4 on sim-1,
// in a class with the reclaim policy Retain.
func (s *space) declaredVolume(name string) {
	s.t.Helper()
	var made string
	await.Until(s.t, longest, func() string {
		made = s.kubectl(s.t, "get", "localvolume", "-n", s.name, name, "-o", "jsonpath={.status.persistentVolumeName}")
		return await.Missing(made != "", "LocalVolume %s has no PersistentVolume", name)
	})
	v, err := s.client.CoreV1().PersistentVolumes().Get(s.t.Context(), made, metav1.GetOptions{})
	require.NoError(s.t, err)
	capacity := v.Spec.Capacity[corev1.ResourceStorage]
	require.Equal(s.t, "10Gi", capacity.String())
	require.Equal(s.t, "ext4", persistentvolume.FSType(v))
	require.Equal(s.t, corev1.PersistentVolumeReclaimRetain, v.Spec.PersistentVolumeReclaimPolicy)
	require.Equal(s.t, []string{hostname("sim-1")}, persistentvolume.Hostnames(v))
	require.Equal(s.t, s.name+"/"+name, v.Spec.ClaimRef.Namespace+"/"+v.Spec.ClaimRef.Name)
}

// translated applies the translation of the static provisioner's ConfigMaps, as read back from the API
// server.
func (s *space) translated(prefix string) {
	s.t.Helper()
	read := 0
	for _, name := range strings.Fields(s.kubectl(s.t, "get", "configmap", "-n", s.name, "-o", "name")) {
		if !strings.HasPrefix(name, "configmap/"+prefix) {
			continue
		}
		read++
		got, err := staticconfig.Read([]byte(s.kubectl(s.t, "get", name, "-n", s.name, "-o", "yaml")))
		require.NoError(s.t, err, name)
		manifest, err := yaml.Marshal(got.Discovery)
		require.NoError(s.t, err, name)
		require.NoError(s.t, s.apply(s.t, string(manifest), "--dry-run=server", "--validate=strict"), name)
	}
	require.Equal(s.t, 10, read)
}

// reportDevices adds the free space of each of a pool's devices to a node's report.
func (b *bed) reportDevices(t *testing.T, node, pool string, free ...volume.Bytes) {
	t.Helper()
	storage, err := b.storage.NodeStorage(t.Context(), node)
	require.NoError(t, err)
	for i := range storage.Status.Pools {
		if storage.Status.Pools[i].Name != pool {
			continue
		}
		for _, one := range free {
			storage.Status.Pools[i].DeviceFree = append(storage.Status.Pools[i].DeviceFree, *resource.NewQuantity(int64(one), resource.BinarySI))
		}
	}
	_, err = b.storage.UpdateNodeStorageStatus(t.Context(), storage)
	require.NoError(t, err)
}
