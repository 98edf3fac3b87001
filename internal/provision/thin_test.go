package provision_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/provision"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// thinVolume returns the PersistentVolume of a want on node-1.
func thinVolume(t *testing.T, w ledger.Want) *corev1.PersistentVolume {
	t.Helper()
	parameters := provision.Parameters{Spec: ledgertest.ThinClass}
	parameters.Ratio = w.Spec.Ratio
	spec := w.Spec
	spec.GroupUUID = ledgertest.GroupUUID
	request := provision.Request{PVName: w.PV, Claim: claimOf(w), Class: class(nil), Cluster: ledgertest.Cluster}
	return request.PersistentVolume(spec, parameters, provision.Node{Name: "node-1", Hostname: "node-1"})
}

func claimOf(w ledger.Want) *corev1.PersistentVolumeClaim {
	return claim(func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests[corev1.ResourceStorage] = ledgertest.Quantity(w.Spec.Size)
	})
}

func TestThinPersistentVolume(t *testing.T) {
	object := thinVolume(t, ledgertest.ThinWant("a", volume.GiB, 2000))
	require.Equal(t, "2", object.Annotations[pv.AnnotationRatio])
	require.Equal(t, "thinpool", object.Spec.FlexVolume.Options[volume.OptionThinPool])
	require.NotContains(t, object.Spec.FlexVolume.Options, "overprovisionRatio")
	c, err := persistentvolume.Parse(object)
	require.NoError(t, err)
	require.Equal(t, volume.PoolName("flexlvm/thinpool"), c.Pool())
	require.Equal(t, (ledgertest.OneGiB+1)/2, c.Charged)

	// When it grows, its charge grows by the same ratio.
	object.Spec.Capacity[corev1.ResourceStorage] = ledgertest.Quantity(4 * volume.GiB)
	c, err = persistentvolume.Parse(object)
	require.NoError(t, err)
	require.Equal(t, volume.XFSDeviceSize(4*volume.GiB, 0)/2, c.Charged)

	object.Annotations[pv.AnnotationRatio] = "0"
	_, err = persistentvolume.Parse(object)
	require.ErrorContains(t, err, pv.AnnotationRatio)
	require.NotContains(t, thinVolume(t, ledgertest.ThinWant("a", volume.GiB, 1000)).Annotations, pv.AnnotationRatio)
}
