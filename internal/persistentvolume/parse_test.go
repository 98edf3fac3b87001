package persistentvolume_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	claimPV      = "pvc-0d9ee5ba-5b9b-4c8e-8d7e-0f4b8f0c6a11"
	sceneCluster = "6e2c0b0a-92a7-4b52-a9f5-2f7b3f1f8a01"
	sceneUUID    = "XfRyGj-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3S"
)

// persistentVolume returns a PersistentVolume as the provisioner writes it, bound to its claim.
func persistentVolume() *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: claimPV, UID: "1", Finalizers: []string{pv.Finalizer, "kubernetes.io/pv-protection"},
			Annotations: map[string]string{
				pv.AnnotationCharged: "1203765248", pv.AnnotationReclaim: "immediate", pv.AnnotationWipe: "discard",
			},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef:                      &corev1.ObjectReference{Namespace: "db", Name: "data-0"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{FlexVolume: &corev1.FlexPersistentVolumeSource{
				Driver: pv.Driver, FSType: "xfs", Options: map[string]string{
					volume.OptionGroup: "flexlvm", volume.OptionSize: "1073741824", volume.OptionLayout: "linear",
					volume.OptionCluster: sceneCluster, volume.OptionKind: "claim", volume.OptionInodes: "1000",
					volume.OptionGroupUUID: sceneUUID,
				},
			}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
}

func TestParse(t *testing.T) {
	whole := persistentvolume.Volume{
		PV: claimPV, UID: "1", Group: "flexlvm", GroupUUID: sceneUUID, Volume: claimPV, Cluster: sceneCluster,
		Kind: volume.Claim, Size: volume.GiB, Inodes: 1000, Shape: volume.Shape{Layout: volume.Linear}, Charged: 1203765248,
		ClaimNamespace: "db", ClaimName: "data-0", Phase: corev1.VolumeBound,
		ReclaimPolicy: corev1.PersistentVolumeReclaimDelete, HasFinalizer: true,
		Disposal: volume.Disposal{Reclaim: volume.ReclaimImmediate, Wipe: volume.WipeDiscard},
	}
	for name, tt := range map[string]struct {
		object func(*corev1.PersistentVolume)
		want   func(*persistentvolume.Volume)
	}{
		"whole": {func(*corev1.PersistentVolume) {}, func(*persistentvolume.Volume) {}},
		"least": {
			func(o *corev1.PersistentVolume) {
				o.Annotations, o.Finalizers, o.Spec.ClaimRef = nil, nil, nil
				o.Spec.PersistentVolumeReclaimPolicy, o.Status.Phase = "", ""
				o.Spec.FlexVolume.Options = map[string]string{volume.OptionGroup: "flexlvm", volume.OptionSize: "1073741824"}
			},
			func(c *persistentvolume.Volume) {
				*c = persistentvolume.Volume{
					PV: claimPV, UID: "1", Group: "flexlvm", Volume: claimPV, Kind: volume.Claim,
					Size: volume.GiB, Shape: volume.Shape{Layout: volume.Linear}, Charged: volume.XFSDeviceSize(volume.GiB, 0),
					Phase: corev1.VolumePending, ReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
					Disposal: volume.Disposal{Reclaim: volume.ReclaimLazy, Wipe: volume.WipeNone},
				}
			},
		},
		"replica": {
			func(o *corev1.PersistentVolume) {
				o.Spec.FlexVolume.Options[volume.OptionVolume] = "ds-1"
				o.Spec.FlexVolume.Options[volume.OptionKind] = "dataset"
			},
			func(c *persistentvolume.Volume) { c.Volume, c.Kind = "ds-1", volume.Dataset },
		},
		"deleted": {
			func(o *corev1.PersistentVolume) {
				now := metav1.NewTime(time.Unix(1, 0))
				o.DeletionTimestamp, o.Finalizers = &now, []string{pv.Finalizer}
				o.Status.Phase = corev1.VolumeReleased
			},
			func(c *persistentvolume.Volume) { c.Deleting, c.Phase = true, corev1.VolumeReleased },
		},
		"no charge noted": {
			func(o *corev1.PersistentVolume) { delete(o.Annotations, pv.AnnotationCharged) },
			func(c *persistentvolume.Volume) { c.Charged = volume.XFSDeviceSize(volume.GiB, 1000) },
		},
		"grown": {
			func(o *corev1.PersistentVolume) {
				o.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse("3Gi")
			},
			func(c *persistentvolume.Volume) {
				c.Size, c.Charged = 3*volume.GiB, volume.XFSDeviceSize(3*volume.GiB, 1000)
			},
		},
		"striped": {
			func(o *corev1.PersistentVolume) {
				o.Spec.FlexVolume.Options[volume.OptionLayout] = "striped"
				o.Spec.FlexVolume.Options[volume.OptionStripes] = "3"
				o.Spec.FlexVolume.Options[volume.OptionStripeKiB] = "128"
			},
			func(c *persistentvolume.Volume) {
				c.Shape = volume.Shape{Layout: volume.Striped, Stripes: 3, StripeKiB: 128}
			},
		},
		"clone": {
			func(o *corev1.PersistentVolume) {
				o.Spec.FlexVolume.Options[volume.OptionLayout] = "thin"
				o.Spec.FlexVolume.Options[volume.OptionThinPool] = "thinpool"
				o.Spec.FlexVolume.Options[volume.OptionCloneOf] = "pvc-1"
			},
			func(c *persistentvolume.Volume) {
				c.Shape, c.CloneOf = volume.Shape{Layout: volume.Thin, ThinPool: "thinpool"}, "pvc-1"
			},
		},
		"raid1, no charge noted": {
			func(o *corev1.PersistentVolume) {
				o.Spec.FlexVolume.Options[volume.OptionLayout] = "raid1"
				delete(o.Annotations, pv.AnnotationCharged)
			},
			func(c *persistentvolume.Volume) {
				c.Shape = volume.Shape{Layout: volume.Raid1, Mirrors: 1}
				c.Charged = 2 * (volume.XFSDeviceSize(volume.GiB, 1000) + volume.DefaultExtent)
			},
		},
		"the largest there can be": {
			func(o *corev1.PersistentVolume) { o.Annotations[pv.AnnotationCharged] = "5500000000000000" },
			func(c *persistentvolume.Volume) { c.Charged = 5500000000000000 },
		},
		"capacity below the size at birth": {
			func(o *corev1.PersistentVolume) {
				o.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse("1M")
			},
			func(*persistentvolume.Volume) {},
		},
		"capacity with a fraction": {
			func(o *corev1.PersistentVolume) {
				o.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse("1073741824500m")
			},
			func(c *persistentvolume.Volume) {
				c.Size, c.Charged = volume.GiB+1, volume.XFSDeviceSize(volume.GiB+1, 1000)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			object, want := persistentVolume(), whole
			tt.object(object)
			tt.want(&want)
			got, err := persistentvolume.Parse(object)
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
}

func TestParseNonsense(t *testing.T) {
	option := func(name, value string) func(*corev1.PersistentVolume) {
		return func(o *corev1.PersistentVolume) { o.Spec.FlexVolume.Options[name] = value }
	}
	annotation := func(name, value string) func(*corev1.PersistentVolume) {
		return func(o *corev1.PersistentVolume) { o.Annotations[name] = value }
	}
	capacity := func(s string) func(*corev1.PersistentVolume) {
		return func(o *corev1.PersistentVolume) { o.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse(s) }
	}
	for name, tt := range map[string]struct {
		spoil func(*corev1.PersistentVolume)
		field string
	}{
		"another kind of volume": {func(o *corev1.PersistentVolume) { o.Spec.FlexVolume = nil }, "spec.flexVolume"},
		"another driver":         {func(o *corev1.PersistentVolume) { o.Spec.FlexVolume.Driver = "x/y" }, "spec.flexVolume.driver"},
		"no group":               {func(o *corev1.PersistentVolume) { delete(o.Spec.FlexVolume.Options, volume.OptionGroup) }, volume.OptionGroup},
		"no size":                {func(o *corev1.PersistentVolume) { delete(o.Spec.FlexVolume.Options, volume.OptionSize) }, volume.OptionSize},
		"no options":             {func(o *corev1.PersistentVolume) { o.Spec.FlexVolume.Options = nil }, volume.OptionGroup},
		"unknown option":         {option("colour", "red"), "option"},
		"layout of later":        {option(volume.OptionLayout, "raid6"), volume.OptionLayout},
		"thin without a pool":    {option(volume.OptionLayout, "thin"), volume.OptionThinPool},
		"thin pool of linear":    {option(volume.OptionThinPool, "p"), volume.OptionThinPool},
		"reserve of a claim":     {option(volume.OptionReserve, "30%"), volume.OptionReserve},
		"clone of nothing":       {option(volume.OptionCloneOf, ""), volume.OptionCloneOf},
		"stripes":                {option(volume.OptionStripes, "0"), volume.OptionStripes},
		"mirrors of linear":      {option(volume.OptionMirrors, "1"), volume.OptionMirrors},
		"group":                  {option(volume.OptionGroup, "a/b"), volume.OptionGroup},
		"group UUID":             {option(volume.OptionGroupUUID, "x"), volume.OptionGroupUUID},
		"size in words":          {option(volume.OptionSize, "1Gi"), volume.OptionSize},
		"inodes":                 {option(volume.OptionInodes, "-1"), volume.OptionInodes},
		"kind":                   {option(volume.OptionKind, "cat"), volume.OptionKind},
		"empty cluster":          {option(volume.OptionCluster, ""), volume.OptionCluster},
		"volume":                 {option(volume.OptionVolume, "doomed_x"), volume.OptionVolume},
		"empty volume":           {option(volume.OptionVolume, ""), volume.OptionVolume},
		"name":                   {func(o *corev1.PersistentVolume) { o.Name = "snapshot-1" }, "metadata.name"},
		"charge in words":        {annotation(pv.AnnotationCharged, "1Gi"), pv.AnnotationCharged},
		"negative charge":        {annotation(pv.AnnotationCharged, "-1"), pv.AnnotationCharged},
		"charge of nothing":      {annotation(pv.AnnotationCharged, "0"), pv.AnnotationCharged},
		"monstrous charge":       {annotation(pv.AnnotationCharged, "9223372036854775807"), pv.AnnotationCharged},
		"reclaim":                {annotation(pv.AnnotationReclaim, "imediate"), pv.AnnotationReclaim},
		"wipe":                   {annotation(pv.AnnotationWipe, "shred"), pv.AnnotationWipe},
		"phase":                  {func(o *corev1.PersistentVolume) { o.Status.Phase = "Odd" }, "status.phase"},
		"policy": {
			func(o *corev1.PersistentVolume) {
				o.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRecycle
			}, "spec.persistentVolumeReclaimPolicy",
		},
		"no capacity":        {func(o *corev1.PersistentVolume) { o.Spec.Capacity = nil }, "spec.capacity.storage"},
		"negative capacity":  {capacity("-1Gi"), "spec.capacity.storage"},
		"monstrous capacity": {capacity("100Ei"), "spec.capacity.storage"},
	} {
		t.Run(name, func(t *testing.T) {
			object := persistentVolume()
			tt.spoil(object)
			got, err := persistentvolume.Parse(object)
			var field *volume.FieldError
			require.ErrorAs(t, err, &field)
			require.Equal(t, tt.field, field.Field)
			require.ErrorContains(t, err, object.Name)
			require.ErrorContains(t, err, "left alone")
			require.Zero(t, got, "nothing of it may be used")
		})
	}
}

func TestNamesOf(t *testing.T) {
	object := persistentVolume()
	require.Equal(t, []string{claimPV}, persistentvolume.NamesOf(object))
	object.Spec.FlexVolume.Options[volume.OptionVolume] = "ds-1"
	require.Equal(t, []string{claimPV, "ds-1"}, persistentvolume.NamesOf(object))
	object.Spec.FlexVolume.Options[volume.OptionCloneOf] = "snap-1"
	require.Equal(t, []string{claimPV, "ds-1", "snap-1"}, persistentvolume.NamesOf(object))
	object.Spec.FlexVolume = nil
	require.Equal(t, []string{claimPV}, persistentvolume.NamesOf(object))
	object.Spec.CSI = &corev1.CSIPersistentVolumeSource{
		VolumeHandle: "flexlvm/ds-2", VolumeAttributes: map[string]string{volume.OptionCloneOf: "snap-2"},
	}
	require.Equal(t, []string{claimPV, "snap-2", "flexlvm", "ds-2"}, persistentvolume.NamesOf(object))
}

// FuzzParse checks that Parse returns either a sound volume or an error that names a field.
func FuzzParse(f *testing.F) {
	f.Add("pvc-1", "volumeGroup=flexlvm,size=1073741824,clusterUID=a-b", "1203765248", "lazy", "none", "Bound", "Delete", int64(1<<30))
	f.Add("pvc-1", "volumeGroup=flexlvm,size=1,volume=ds-1,kind=dataset,inodes=7", "", "", "", "", "", int64(1))
	f.Add("snapshot", "volumeGroup=../x,size=-1,layout=thin", "0", "never", "all", "Odd", "Recycle", int64(-1))
	f.Add("a", "volumeGroup=a,size=549755813888000,inodes=1099511627776", "9223372036854775807", "immediate", "zero", "Failed", "Retain", int64(1<<62))
	f.Fuzz(func(t *testing.T, name, options, charged, reclaim, wipe, phase, policy string, capacity int64) {
		object := persistentVolume()
		object.Name = name
		object.Spec.FlexVolume.Options = map[string]string{}
		for _, o := range strings.Split(options, ",") {
			k, v, _ := strings.Cut(o, "=")
			object.Spec.FlexVolume.Options[k] = v
		}
		object.Annotations = map[string]string{pv.AnnotationReclaim: reclaim, pv.AnnotationWipe: wipe}
		if charged != "" {
			object.Annotations[pv.AnnotationCharged] = charged
		}
		object.Status.Phase = corev1.PersistentVolumePhase(phase)
		object.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimPolicy(policy)
		object.Spec.Capacity[corev1.ResourceStorage] = *resource.NewQuantity(capacity, resource.BinarySI)
		c, err := persistentvolume.Parse(object)
		if err != nil {
			var field *volume.FieldError
			require.True(t, errors.As(err, &field), err)
			require.NotEmpty(t, field.Field)
			require.Zero(t, c)
			return
		}
		require.Positive(t, c.Size)
		require.Positive(t, c.Charged)
		require.NotEmpty(t, c.Group)
		require.False(t, c.Volume.IsDoomed())
		require.Contains(t, persistentvolume.NamesOf(object), string(c.Volume))
		require.NotEmpty(t, c.Phase)
		require.NotEmpty(t, c.Disposal.Reclaim)
		again, err := persistentvolume.Parse(object)
		require.NoError(t, err)
		require.Equal(t, c, again)
	})
}

// An option of a newer release needs an upgrade. Only an invalid value needs a person to change the object.
func TestParseOfANewerRelease(t *testing.T) {
	object := persistentVolume()
	object.Spec.FlexVolume.Options["later"] = "1"
	_, err := persistentvolume.Parse(object)
	require.ErrorIs(t, err, volume.ErrUnknown)
	require.ErrorContains(t, err, `option "later": is not known to this release`)
	require.ErrorContains(t, err, "change nothing, and upgrade")
	require.NotRegexp(t, "finalizer|corrects", err.Error())

	object = persistentVolume()
	object.Spec.FlexVolume.Options[volume.OptionSize] = "large"
	_, err = persistentvolume.Parse(object)
	require.ErrorContains(t, err, "its volume is left alone until a person corrects the object, or removes its finalizer "+pv.Finalizer)
	require.NotContains(t, err.Error(), "upgrade")
}
