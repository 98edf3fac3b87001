package provision_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func restoring(c *corev1.PersistentVolumeClaim) {
	group := "snapshot.storage.k8s.io"
	c.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: "monday"}
}

// snapshotCast is cloneCast with a snapshot of the claim's volume; the claim and its volume are gone.
func snapshotCast(t *testing.T) (*cast, *corev1.PersistentVolume) {
	t.Helper()
	c := cloneCast(t)
	spec := ledgertest.ThinWant("pvc-source", volume.GiB, 0).Spec
	spec.Namespace, spec.GroupUUID = "team-a", ledgertest.GroupUUID
	source := persistentvolume.New(pv.Description{Name: "pvc-source", Node: "node-1", Hostname: "host-1", Door: pv.CSI, Spec: spec, Charged: spec.Charge()}, nil, corev1.PersistentVolumeReclaimDelete)
	object, _, err := persistentvolume.Snapshot(source, "snap-1", 0)
	require.NoError(t, err)
	take(object)
	c.claims, c.volumes = nil, []*corev1.PersistentVolume{object}
	c.snapshots = map[string]string{"team-a/monday": "flexlvm/snap-1"}
	return c, object
}

// take marks a snapshot as taken.
func take(object *corev1.PersistentVolume) {
	for key, value := range persistentvolume.Taken(time.Unix(1, 0), volume.GiB) {
		if value != nil {
			object.Annotations[key] = *value
		}
	}
}

func snapshotOptions(selected string) controller.ProvisionOptions {
	return controller.ProvisionOptions{PVName: pvName, PVC: claim(restoring), StorageClass: class(thinly), SelectedNodeName: selected}
}

// A restored volume is placed on the snapshot's node, and charged like any thin volume.
func TestRestoreASnapshot(t *testing.T) {
	for _, selected := range []string{"node-1", "node-2", ""} {
		c, _ := snapshotCast(t)
		o := snapshotOptions(selected)
		sized("4Gi")(o.PVC)
		got, state, err := c.provisioner(t).Provision(context.Background(), o)
		require.NoError(t, err)
		require.Equal(t, controller.ProvisioningFinished, state)
		require.Equal(t, "node-1", got.Labels[pv.LabelNode])
		require.Equal(t, "snap-1", got.Spec.FlexVolume.Options[volume.OptionCloneOf])
		require.Equal(t, decimal(volume.XFSDeviceSize(4*volume.GiB, 0)), got.Annotations[pv.AnnotationCharged])
	}
}

func TestRestoreWhatCannotBe(t *testing.T) {
	for name, tt := range map[string]struct {
		change  func(*cast, *corev1.PersistentVolume, *controller.ProvisionOptions)
		err     string
		refused bool
	}{
		"not ready": {func(c *cast, _ *corev1.PersistentVolume, _ *controller.ProvisionOptions) { c.snapshots = nil }, `dataSource "monday": that VolumeSnapshot is not ready yet`, false},
		"of another namespace": {func(_ *cast, v *corev1.PersistentVolume, _ *controller.ProvisionOptions) {
			v.Spec.CSI.VolumeAttributes[pv.AttributeNamespace] = "team-b"
		}, "its snapshot is of a volume of another namespace", true},
		"said to be of another namespace": {func(_ *cast, _ *corev1.PersistentVolume, o *controller.ProvisionOptions) {
			group := "snapshot.storage.k8s.io"
			o.PVC.Spec.DataSource, o.PVC.Spec.DataSourceRef = nil, &corev1.TypedObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: "monday", Namespace: ptr("team-b")}
		}, "only a snapshot of namespace \"team-a\" can be restored", true},
		"of a name that leads elsewhere": {func(_ *cast, _ *corev1.PersistentVolume, o *controller.ProvisionOptions) {
			o.PVC.Spec.DataSource.Name = "../../../../../../api/v1/pods"
		}, `dataSource "../../../../../../api/v1/pods": is no name that an object can have`, true},
		"gone": {func(c *cast, _ *corev1.PersistentVolume, _ *controller.ProvisionOptions) { c.volumes = nil }, "cannot be looked up", false},
		"nonsense": {func(c *cast, _ *corev1.PersistentVolume, _ *controller.ProvisionOptions) {
			c.snapshots["team-a/monday"] = "snap-1"
		}, "is not the handle", false},
		"another's handle": {func(c *cast, _ *corev1.PersistentVolume, _ *controller.ProvisionOptions) {
			c.snapshots["team-a/monday"] = "other/snap-1"
		}, "does not stand for its snapshot", false},
		"a claim's volume": {func(c *cast, _ *corev1.PersistentVolume, _ *controller.ProvisionOptions) {
			c.volumes = append(c.volumes, cloneCast(t).volumes...)
			c.snapshots["team-a/monday"] = "flexlvm/pvc-source"
		}, "does not stand for its snapshot", false},
		"being deleted": {func(_ *cast, v *corev1.PersistentVolume, _ *controller.ProvisionOptions) {
			v.DeletionTimestamp = ptr(metav1.NewTime(time.Unix(1, 0)))
		}, "its snapshot is being deleted", false},
		"not taken": {func(_ *cast, v *corev1.PersistentVolume, _ *controller.ProvisionOptions) {
			delete(v.Annotations, pv.AnnotationSnapshotTaken)
		}, "its snapshot is not taken yet", false},
		"smaller": {func(_ *cast, _ *corev1.PersistentVolume, o *controller.ProvisionOptions) { sized("512Mi")(o.PVC) }, "a copy is as large as its source or larger", true},
		"more inodes than the class has": {func(_ *cast, v *corev1.PersistentVolume, _ *controller.ProvisionOptions) {
			v.Spec.CSI.VolumeAttributes["inodes"] = "50000000"
		}, "use a class with the inodes of the source", true},
		"a linear class": {func(_ *cast, _ *corev1.PersistentVolume, o *controller.ProvisionOptions) { o.StorageClass = class(nil) }, `its volume is in thin pool`, true},
		"its node full":  {func(_ *cast, _ *corev1.PersistentVolume, o *controller.ProvisionOptions) { sized("20Gi")(o.PVC) }, `dataSource "monday" is on node "node-1"`, false},
	} {
		t.Run(name, func(t *testing.T) {
			c, object := snapshotCast(t)
			o := snapshotOptions("node-1")
			tt.change(c, object, &o)
			_, _, err := c.provisioner(t).Provision(context.Background(), o)
			require.ErrorContains(t, err, tt.err)
			refusal := (*controlplane.Refusal)(nil)
			require.Equal(t, tt.refused, errors.As(err, &refusal))
		})
	}
}

// storeCast is snapshotCast with a copy-on-write snapshot of a raid1 volume.
func storeCast(t *testing.T) (*cast, *corev1.PersistentVolume) {
	t.Helper()
	c, _ := snapshotCast(t)
	spec := ledgertest.Want("pvc-source", volume.GiB).Spec
	spec.Namespace, spec.GroupUUID, spec.Layout, spec.Mirrors = "team-a", ledgertest.GroupUUID, volume.Raid1, 1
	source := persistentvolume.New(pv.Description{Name: "pvc-source", Node: "node-1", Hostname: "host-1", Door: pv.CSI, Spec: spec, Charged: spec.Charge()}, nil, corev1.PersistentVolumeReclaimDelete)
	object, _, err := persistentvolume.Snapshot(source, "snap-1", 30)
	require.NoError(t, err)
	take(object)
	c.volumes = []*corev1.PersistentVolume{object}
	return c, object
}

// A full copy is placed in its source's group, may have another layout, and is charged like any volume of its class.
func TestRestoreACopyOnWriteSnapshot(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*corev1.PersistentVolume, *controller.ProvisionOptions)
		says   string // empty: the restore succeeds
	}{
		"linear": {func(*corev1.PersistentVolume, *controller.ProvisionOptions) {}, ""},
		"larger": {func(_ *corev1.PersistentVolume, o *controller.ProvisionOptions) { sized("4Gi")(o.PVC) }, ""},
		"smaller": {func(_ *corev1.PersistentVolume, o *controller.ProvisionOptions) { sized("512Mi")(o.PVC) },
			"a copy is as large as its source or larger"},
		"thin": {func(_ *corev1.PersistentVolume, o *controller.ProvisionOptions) { thinly(o.StorageClass) },
			"its snapshot is of a volume that is not thin"},
		"another group": {func(_ *corev1.PersistentVolume, o *controller.ProvisionOptions) {
			o.StorageClass.Parameters = map[string]string{"volumeGroup": "other"}
		}, `is in volume group "flexlvm", and StorageClass "flexlvm" is of "other"`},
		"more inodes than the class has": {func(v *corev1.PersistentVolume, _ *controller.ProvisionOptions) {
			v.Spec.CSI.VolumeAttributes["inodes"] = "1000000"
		}, "use a class with the inodes of the source"},
		"lost": {func(v *corev1.PersistentVolume, _ *controller.ProvisionOptions) {
			v.Annotations[pv.AnnotationSnapshotProblem] = "the snapshot has overflowed"
		}, `dataSource "monday": the snapshot has overflowed`},
		"another namespace's": {func(v *corev1.PersistentVolume, _ *controller.ProvisionOptions) {
			v.Spec.CSI.VolumeAttributes[pv.AttributeNamespace] = "team-b"
		}, "its snapshot is of a volume of another namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			c, object := storeCast(t)
			o := snapshotOptions("node-1")
			o.StorageClass = class(nil)
			tt.change(object, &o)
			got, _, err := c.provisioner(t).Provision(context.Background(), o)
			if tt.says != "" {
				require.ErrorContains(t, err, tt.says)
				refusal := (*controlplane.Refusal)(nil)
				require.ErrorAs(t, err, &refusal)
				return
			}
			require.NoError(t, err)
			require.Equal(t, "node-1", got.Labels[pv.LabelNode])
			require.Equal(t, "snap-1", got.Spec.FlexVolume.Options[volume.OptionCloneOf])
			require.Equal(t, "linear", got.Spec.FlexVolume.Options[volume.OptionLayout])
			capacity := got.Spec.Capacity[corev1.ResourceStorage]
			require.Equal(t, decimal(volume.XFSDeviceSize(volume.Bytes(capacity.Value()), 0)), got.Annotations[pv.AnnotationCharged])
		})
	}
}
