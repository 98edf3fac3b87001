package persistentvolume

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Through returns the source that New builds for a door, whichever source the PersistentVolume has, even if it
// is not named after its volume.
func TestThrough(t *testing.T) {
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	for _, name := range []volume.Name{"pvc-1", "restored"} {
		made := map[pv.Door]*corev1.PersistentVolume{}
		for _, door := range []pv.Door{pv.Flex, pv.CSI} {
			d := description()
			d.Door, d.Spec.Name, d.Spec.Namespace = door, name, "shop"
			made[door] = New(d, modes, corev1.PersistentVolumeReclaimDelete)
			made[door].Spec.ClaimRef = &corev1.ObjectReference{Namespace: "shop", Name: "data"}
		}
		for from, object := range made {
			for to, want := range made {
				got, err := SourceFor(object, to, object.Name)
				require.NoError(t, err)
				require.Equal(t, want.Spec.PersistentVolumeSource, got, "%s from %s to %s", name, from, to)
			}
			other := object.DeepCopy()
			other.Name = "pvc-1-door"
			source, err := SourceFor(object, pv.CSI, other.Name)
			require.NoError(t, err)
			other.Spec.PersistentVolumeSource = source
			parsed, err := Parse(other)
			require.NoError(t, err)
			require.Equal(t, name, parsed.Volume)
		}
	}
}

func TestThroughRefuses(t *testing.T) {
	d := description()
	object := New(d, nil, corev1.PersistentVolumeReclaimDelete)
	_, err := SourceFor(object, pv.CSI, object.Name)
	require.ErrorContains(t, err, "spec.claimRef.namespace", "nobody's volume has no namespace")
	d.Door, d.Spec.Namespace = pv.CSI, "shop"
	object = New(d, nil, corev1.PersistentVolumeReclaimDelete)
	object.Spec.CSI.NodePublishSecretRef = &corev1.SecretReference{Name: "theirs", Namespace: "kube-system"}
	object.Spec.CSI.ReadOnly = true
	source, err := SourceFor(object, pv.CSI, object.Name)
	require.NoError(t, err)
	require.Nil(t, source.CSI.NodePublishSecretRef)
	require.True(t, source.CSI.ReadOnly)
	object.Spec.CSI.VolumeHandle = "flexlvm/other"
	object.Spec.CSI.VolumeAttributes[volume.OptionVolume] = "pvc-1"
	_, err = SourceFor(object, pv.Flex, object.Name)
	require.ErrorContains(t, err, "names another volume")
	object.Spec.CSI.Driver = "example.org"
	_, err = SourceFor(object, pv.Flex, object.Name)
	require.ErrorContains(t, err, "is not flexlvm's")
}
