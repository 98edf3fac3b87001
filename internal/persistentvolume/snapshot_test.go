package persistentvolume_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// thinSource returns the PersistentVolume of a thin volume of the CSI driver.
func thinSource() *corev1.PersistentVolume {
	spec := volume.Spec{
		Group: "flexlvm", GroupUUID: sceneUUID, Name: "pvc-1", Size: volume.GiB, Layout: volume.Thin, ThinPool: "thinpool",
		Kind: volume.Claim, Cluster: sceneCluster, Namespace: "shop", Inodes: 1000, Encrypted: true,
	}
	object := persistentvolume.New(pv.Description{
		Name: "pvc-1", Node: "node-1", Hostname: "host-1", Door: pv.CSI, Spec: spec, Charged: spec.Charge(),
		Disposal: volume.Disposal{Reclaim: volume.ReclaimLazy, Wipe: volume.WipeDiscard},
	}, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, corev1.PersistentVolumeReclaimDelete)
	object.Annotations[pv.AnnotationRatio] = "2"
	return object
}

func TestSnapshot(t *testing.T) {
	source := thinSource()
	source.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse("2Gi") // it has grown
	object, spec, err := persistentvolume.Snapshot(source, "snap-1", 0)
	require.NoError(t, err)
	require.Equal(t, map[string]string{pv.LabelNode: "node-1", pv.LabelSnapshot: "true"}, object.Labels)
	require.Equal(t, source.Spec.NodeAffinity, object.Spec.NodeAffinity)
	require.Equal(t, &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: "shop", Name: "(snapshot)"}, object.Spec.ClaimRef)
	require.Equal(t, corev1.PersistentVolumeReclaimRetain, object.Spec.PersistentVolumeReclaimPolicy)
	require.Equal(t, []string{pv.Finalizer}, object.Finalizers)
	require.Nil(t, object.Spec.CSI.NodePublishSecretRef)
	require.True(t, persistentvolume.IsSnapshot(object))
	require.False(t, persistentvolume.IsSnapshot(source))

	c, err := persistentvolume.Parse(object)
	require.NoError(t, err)
	require.Equal(t, []any{volume.Name("snap-1"), volume.Name("pvc-1"), volume.Snapshot, "shop", 2 * volume.GiB, true, false},
		[]any{c.Volume, c.CloneOf, c.Kind, c.ClaimNamespace, c.Size, c.Encrypted, c.Taken})
	require.Equal(t, volume.Disposal{Reclaim: volume.ReclaimImmediate, Wipe: volume.WipeDiscard}, c.Disposal)
	require.Equal(t, spec.Charge(), c.Charged, "as any thin volume of its size, divided by the ratio")
	require.Less(t, c.Charged, 2*volume.GiB)
	_, taken := persistentvolume.TakenAt(object)
	require.False(t, taken)

	at := time.Date(2026, 11, 25, 3, 4, 5, 0, time.UTC)
	for key, value := range persistentvolume.Taken(at, 3*volume.GiB) {
		if value != nil {
			object.Annotations[key] = *value
		}
	}
	c, err = persistentvolume.Parse(object)
	require.NoError(t, err)
	require.True(t, c.Taken)
	require.Equal(t, 3*volume.GiB, c.Size, "its source had grown once more")
	require.Greater(t, c.Charged, spec.Charge())
	object.Annotations[pv.AnnotationSnapshotSize] = "1073741824"
	less, err := persistentvolume.Parse(object)
	require.NoError(t, err)
	require.Equal(t, volume.GiB, less.Size, "its source was not grown yet")
	require.Less(t, less.Charged, spec.Charge())
	require.Equal(t, less.Charged, less.Charge().Noted)
	is, taken := persistentvolume.TakenAt(object)
	require.True(t, taken)
	require.Equal(t, at, is)
	for _, key := range []string{pv.AnnotationSnapshotTaken, pv.AnnotationSnapshotSize, pv.AnnotationSnapshotProblem} {
		require.True(t, persistentvolume.Reads(key))
	}
}

func TestParseRefusesSnapshots(t *testing.T) {
	object, _, err := persistentvolume.Snapshot(thinSource(), "snap-1", 0)
	require.NoError(t, err)
	other := object.DeepCopy()
	other.Name = "another"
	_, err = persistentvolume.Parse(other)
	require.ErrorContains(t, err, "named after their volume")
	flex := persistentVolume()
	flex.Spec.FlexVolume.Options = map[string]string{"volumeGroup": "flexlvm", "size": "1073741824", "layout": "thin", "thinPool": "thinpool", "kind": "snapshot", "cloneOf": "pvc-1"}
	_, err = persistentvolume.Parse(flex)
	require.ErrorContains(t, err, "only for PersistentVolumes of the CSI driver")
	_, _, err = persistentvolume.Snapshot(thinSource(), "snap-1", 30)
	require.ErrorContains(t, err, "reserve", "a thin snapshot has no store of its own")
}

// The snapshot of a thick volume is charged for its store, whatever layout its source has, and Parse returns
// why it was lost.
func TestCopyOnWriteSnapshot(t *testing.T) {
	source := thinSource()
	attributes := source.Spec.CSI.VolumeAttributes
	attributes["layout"], attributes["mirrors"] = "raid1", "1"
	delete(attributes, "thinPool")
	delete(source.Annotations, pv.AnnotationRatio)
	charged := map[volume.Reserve]volume.Bytes{}
	for _, reserve := range []volume.Reserve{0, 30} {
		object, spec, err := persistentvolume.Snapshot(source, "snap-1", reserve)
		require.NoError(t, err)
		c, err := persistentvolume.Parse(object)
		require.NoError(t, err)
		require.True(t, c.CopyOnWrite())
		require.Equal(t, []any{volume.Shape{Layout: volume.Linear}, volume.Name("pvc-1"), reserve}, []any{c.Shape, c.CloneOf, c.Reserve})
		require.Equal(t, spec.Charge(), c.Charged)
		require.Equal(t, spec.DeviceSize(), c.Charge().Device)
		charged[reserve] = c.Charged

		for key, value := range persistentvolume.Stored(time.Unix(1, 0), volume.GiB/2, volume.GiB) {
			if value != nil {
				object.Annotations[key] = *value
			}
		}
		c, err = persistentvolume.Parse(object)
		require.NoError(t, err)
		require.Equal(t, []volume.Bytes{volume.GiB / 2, volume.GiB, volume.GiB, volume.GiB}, []volume.Bytes{c.Size, c.Charged, c.Charge().In(4 * volume.MiB), c.Charge().In(32 * volume.MiB)})
		delete(object.Annotations, pv.AnnotationSnapshotTaken)

		object.Annotations[pv.AnnotationSnapshotProblem] = "the pool is full"
		c, err = persistentvolume.Parse(object)
		require.NoError(t, err)
		require.Empty(t, c.Lost, "it may be taken yet")
		object.Annotations[pv.AnnotationSnapshotTaken] = "2026-11-25T03:00:00Z"
		c, err = persistentvolume.Parse(object)
		require.NoError(t, err)
		require.Equal(t, "the pool is full", c.Lost)
	}
	size, _ := volume.COWStore(volume.XFSDeviceSize(volume.GiB, 1000)+volume.LUKSHeader, 0, 0)
	require.Equal(t, size, charged[0])
	require.InDelta(t, 0.3, float64(charged[30])/float64(size), 0.01)
}

// The charge of a snapshot follows its source's device, which may be larger than the source's size implies, and
// suffices in volume groups with large extents.
func TestChargeOfACopyOnWriteSnapshot(t *testing.T) {
	spec := volume.Spec{Group: "flexlvm", Name: "pvc-1", Size: volume.GiB, Layout: volume.Raid1, Mirrors: 2, Kind: volume.Claim, Cluster: sceneCluster, Namespace: "shop"}
	charged := func(takes volume.Bytes, reserve volume.Reserve) persistentvolume.Charge {
		source := persistentvolume.New(pv.Description{Name: "pvc-1", Node: "node-1", Hostname: "host-1", Door: pv.CSI, Spec: spec, Charged: takes}, nil, corev1.PersistentVolumeReclaimDelete)
		object, _, err := persistentvolume.Snapshot(source, "snap-1", reserve)
		require.NoError(t, err)
		c, err := persistentvolume.Parse(object)
		require.NoError(t, err)
		return c.Charge()
	}
	adopted, _ := volume.COWStore(volume.TiB, 0, 0)
	require.Equal(t, adopted, charged(spec.Shape().Takes(volume.TiB, 0), 0).In(volume.DefaultExtent))
	for _, extent := range []volume.Bytes{volume.DefaultExtent, 32 * volume.MiB, 128 * volume.MiB} {
		for _, reserve := range []volume.Reserve{0, 30} {
			for spec.Size = volume.GiB; spec.Size < 2*volume.GiB; spec.Size += 12 * volume.MiB {
				store, _ := volume.COWStore(spec.Shape().RoundUp(spec.DeviceSize(), extent), extent, reserve)
				require.GreaterOrEqual(t, charged(spec.Charge(), reserve).In(extent), store, "%s in extents of %s", spec.Size, extent)
			}
		}
	}
	spec.Layout, spec.Stripes, spec.Mirrors = volume.Striped, 4, 0
	spec.Size = volume.GiB + 12*volume.MiB
	store, _ := volume.COWStore(spec.Shape().RoundUp(spec.DeviceSize(), 0), 0, 0)
	require.Equal(t, store, charged(spec.Charge(), 0).In(volume.DefaultExtent))
}
