package persistentvolume

import (
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

// Parse reads back what New has written.
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
		HasFinalizer: true, Disposal: d.Disposal, OnNodeLoss: string(d.OnNodeLoss),
	}, got)

	d.Spec.FS = "0f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11"
	object = New(d, nil, corev1.PersistentVolumeReclaimDelete)
	got, err = Parse(object)
	require.NoError(t, err)
	require.Equal(t, d.Spec.FS, got.FS)
	require.False(t, got.Undelete)
	for mark, undelete := range map[string]bool{d.Spec.FS: true, "": false, "1f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11": false} {
		object.Annotations[pv.AnnotationUndelete] = mark
		got, err = Parse(object)
		require.NoError(t, err)
		require.Equal(t, undelete, got.Undelete, "a mark counts if it says what the options say")
	}
	require.True(t, Reads(pv.AnnotationUndelete))

	d.Spec.Name, d.Spec.FS = "dataset", ""
	object = New(d, nil, corev1.PersistentVolumeReclaimDelete)
	require.Equal(t, "dataset", Options(object)[volume.OptionVolume])
}

// Parse returns the same volume for a CSI source as for a FlexVolume source.
func TestNewIsReadBackThroughCSI(t *testing.T) {
	d := description()
	d.Spec.Namespace = "shop"
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	flex := New(d, modes, corev1.PersistentVolumeReclaimDelete)
	require.Equal(t, pv.Flex, DoorOf(flex))
	d.Door = pv.CSI
	object := New(d, modes, corev1.PersistentVolumeReclaimDelete)
	require.Equal(t, pv.CSI, DoorOf(object))
	require.True(t, IsOurs(object))
	require.Equal(t, "flexlvm/pvc-1", object.Spec.CSI.VolumeHandle)
	require.Equal(t, "shop", object.Spec.CSI.VolumeAttributes["namespace"])
	require.Equal(t, Options(flex), Options(object))
	want, err := Parse(flex)
	require.NoError(t, err)
	got, err := Parse(object)
	require.NoError(t, err)
	require.Equal(t, want, got)

	stripped := object.DeepCopy()
	stripped.Spec.PersistentVolumeSource = StripSource(object)
	got, err = Parse(stripped)
	require.NoError(t, err)
	require.Equal(t, want, got)

	d.Spec.Name = "dataset"
	object = New(d, nil, corev1.PersistentVolumeReclaimDelete)
	require.Equal(t, "flexlvm/dataset", object.Spec.CSI.VolumeHandle)
	got, err = Parse(object)
	require.NoError(t, err)
	require.EqualValues(t, "dataset", got.Volume)
	require.Equal(t, []string{"pvc-1", "dataset", "flexlvm", "dataset"}, NamesOf(object))
}

// A CSI source whose handle and attributes do not name one volume is rejected, and the volume left alone.
func TestCSIThatContradictsItself(t *testing.T) {
	for field, spoil := range map[string]func(*corev1.CSIPersistentVolumeSource){
		"spec.csi.volumeHandle":               func(s *corev1.CSIPersistentVolumeSource) { s.VolumeHandle = "other/pvc-1" },
		"names another volume":                func(s *corev1.CSIPersistentVolumeSource) { s.VolumeAttributes["volume"] = "pvc-2" },
		"GROUP/VOLUME":                        func(s *corev1.CSIPersistentVolumeSource) { s.VolumeHandle = "pvc-1" },
		"than spec.csi.volumeAttributes":      func(s *corev1.CSIPersistentVolumeSource) { s.VolumeHandle += "/readers" },
		"spec.csi.driver":                     func(s *corev1.CSIPersistentVolumeSource) { s.Driver = "other.io" },
		"spec.csi.volumeAttributes.namespace": func(s *corev1.CSIPersistentVolumeSource) { delete(s.VolumeAttributes, "namespace") },
		"storage.kubernetes.io/identity":      func(s *corev1.CSIPersistentVolumeSource) { s.VolumeAttributes["storage.kubernetes.io/identity"] = "x" },
	} {
		d := description()
		d.Spec.Namespace, d.Door = "shop", pv.CSI
		object := New(d, nil, corev1.PersistentVolumeReclaimDelete)
		spoil(object.Spec.CSI)
		_, err := Parse(object)
		require.ErrorContains(t, err, field)
		require.ErrorContains(t, err, "left alone")
		require.Contains(t, NamesOf(object), "pvc-1")
	}
}

// The readers of a dataset have a handle of their own. Parse rejects their PersistentVolume, which has no
// volume to charge.
func TestReadersSource(t *testing.T) {
	options := map[string]string{"volumeGroup": "flexlvm", "size": "1", "kind": "dataset", "volume": "ds-1", "readOnly": "true"}
	object := New(description(), nil, corev1.PersistentVolumeReclaimRetain)
	object.Spec.PersistentVolumeSource = ReadersSource(pv.CSI, options, "shop")
	require.Equal(t, &corev1.CSIPersistentVolumeSource{
		Driver: "flexlvm.io", FSType: "xfs", ReadOnly: true, VolumeHandle: "flexlvm/ds-1/readers", VolumeAttributes: pv.Attributes(options, "shop"),
	}, object.Spec.CSI)
	require.NotContains(t, options, "namespace")
	_, err := Parse(object)
	require.ErrorContains(t, err, "is for the readers of a dataset")
	object.Spec.PersistentVolumeSource = ReadersSource(pv.Flex, options, "shop")
	require.Equal(t, &corev1.FlexPersistentVolumeSource{Driver: "flexlvm.io/flexlvm", FSType: "xfs", ReadOnly: true, Options: options}, object.Spec.FlexVolume)
}

// `flexlvm volumes undelete` prints the PersistentVolume that the provisioner writes, except for the fields
// that binding the claim adds.
func TestManifestIsWhatNewBuilds(t *testing.T) {
	for _, door := range []pv.Door{pv.Flex, pv.CSI} {
		t.Run(string(door), func(t *testing.T) {
			d := description()
			d.Spec.FS = "0f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11"
			d.Door, d.Spec.Namespace = door, "shop"
			testManifestIsWhatNewBuilds(t, d)
			if d.Spec.FSType = volume.Raw; door == pv.CSI {
				testManifestIsWhatNewBuilds(t, d)
			}
		})
	}
}

func testManifestIsWhatNewBuilds(t *testing.T, d pv.Description) {
	m := pv.Manifest{Description: d, Policy: "Delete", Class: "fast", Namespace: "shop", Claim: "data"}
	first, second, found := strings.Cut(strings.TrimPrefix(m.YAML(), "---\n"), "---\n")
	require.True(t, found)
	var got corev1.PersistentVolume
	require.NoError(t, yaml.UnmarshalStrict([]byte(first), &got))
	var gotClaim corev1.PersistentVolumeClaim
	require.NoError(t, yaml.UnmarshalStrict([]byte(second), &gotClaim))

	want, claim := FromManifest(m, nil)
	want.APIVersion, want.Kind = "v1", "PersistentVolume"
	require.Zero(t, want.Spec.Capacity.Storage().Cmp(*got.Spec.Capacity.Storage()))
	want.Spec.Capacity = got.Spec.Capacity
	require.Equal(t, *want, got)
	claim.APIVersion, claim.Kind = "v1", "PersistentVolumeClaim"
	claim.Spec.Resources.Requests = got.Spec.Capacity
	require.Equal(t, *claim, gotClaim)
}

// Apart from package pv and the drivers, no other package uses spec.flexVolume and spec.csi, so a new way to
// reach volumes is added here and nowhere else.
func TestNobodyElseKnowsTheDoors(t *testing.T) {
	knows := regexp.MustCompile(`\.FlexVolume\b|FlexPersistentVolumeSource|FlexVolumeSource|CSIPersistentVolumeSource|VolumeAttributes\b|(?m)^\s*(flexVolume|csi):`)
	var looked int
	for _, root := range []string{"../../internal", "../../cmd", "../../pkg"} {
		require.NoError(t, filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			looked++
			text, err := os.ReadFile(path)
			switch filepath.Base(filepath.Dir(path)) {
			case "persistentvolume", "pv", "flexvolume", "csidoor":
			default:
				require.NotRegexp(t, knows, string(text), path)
			}
			return err
		}))
	}
	require.Greater(t, looked, 100)
}
