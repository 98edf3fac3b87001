package persistentvolume

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func description() pv.Description {
	return pv.Description{
		Name: "pvc-1", Node: "node-1", Hostname: "host-1",
		Spec: volume.Spec{
			Group: "flexlvm", Name: "pvc-1", Size: volume.GiB, Inodes: 1000, Kind: volume.Claim, Cluster: "7f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11",
			Layout: volume.Thin, ThinPool: "thinpool", Ratio: 1500,
		},
		Charged: volume.GiB, Disposal: volume.Disposal{Reclaim: volume.ReclaimImmediate, Wipe: volume.WipeDiscard},
		OnNodeLoss: volume.OnNodeLossRelease,
	}
}

// What New writes, Parse reads.
func TestNewIsReadBack(t *testing.T) {
	d := description()
	object := New(d, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, corev1.PersistentVolumeReclaimDelete)
	object.Status.Phase = corev1.VolumeBound
	require.True(t, IsOurs(object))
	require.Equal(t, []string{"host-1"}, Hostnames(object))
	require.NotContains(t, Options(object), volume.OptionVolume)
	got, err := Parse(object)
	require.NoError(t, err)
	require.Equal(t, Volume{
		PV: "pvc-1", Group: "flexlvm", Volume: "pvc-1", Cluster: d.Spec.Cluster, Kind: volume.Claim, Size: volume.GiB, Inodes: 1000,
		Shape: d.Spec.Shape(), Charged: volume.GiB, Phase: corev1.VolumeBound, ReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
		HasFinalizer: true, Disposal: d.Disposal,
	}, got)

	d.Spec.Name = "dataset"
	object = New(d, nil, corev1.PersistentVolumeReclaimDelete)
	require.Equal(t, "dataset", Options(object)[volume.OptionVolume])
}

// What `flexlvm volumes undelete` prints is what the provisioner writes, but for what
// binding the claim adds.
func TestManifestIsWhatNewBuilds(t *testing.T) {
	m := pv.Manifest{Description: description(), Policy: "Delete", Class: "fast", Namespace: "shop", Claim: "data"}
	first, _, found := strings.Cut(strings.TrimPrefix(m.YAML(), "---\n"), "---\n")
	require.True(t, found)
	var got corev1.PersistentVolume
	require.NoError(t, yaml.UnmarshalStrict([]byte(first), &got))

	want := New(m.Description, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, corev1.PersistentVolumeReclaimDelete)
	want.APIVersion, want.Kind = "v1", "PersistentVolume"
	want.Spec.StorageClassName = "fast"
	want.Spec.ClaimRef = &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: "shop", Name: "data"}
	maps.Copy(want.Annotations, map[string]string{pv.AnnotationProvisionedBy: pv.Provisioner})
	require.Zero(t, want.Spec.Capacity.Storage().Cmp(*got.Spec.Capacity.Storage()))
	want.Spec.Capacity = got.Spec.Capacity
	require.Equal(t, *want, got)
}

// A second way to reach volumes must be added here and nowhere else: apart from the
// driver, whose own it is, no other package looks at spec.flexVolume.
func TestNobodyElseKnowsFlexVolumes(t *testing.T) {
	knows := regexp.MustCompile(`\.FlexVolume\b|FlexPersistentVolumeSource|FlexVolumeSource|(?m)^\s*flexVolume:`)
	var looked int
	for _, root := range []string{"../../internal", "../../cmd", "../../pkg"} {
		require.NoError(t, filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			looked++
			text, err := os.ReadFile(path)
			switch filepath.Base(filepath.Dir(path)) {
			case "persistentvolume", "pv", "flexvolume":
			default:
				require.NotRegexp(t, knows, string(text), path)
			}
			return err
		}))
	}
	require.Greater(t, looked, 100)
}
