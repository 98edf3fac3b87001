package persistentvolume_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const hash = "0123456789abcdef"

// replicaVolume returns the PersistentVolume of a complete replica.
func replicaVolume() *corev1.PersistentVolume {
	o := persistentVolume()
	o.Labels = map[string]string{pv.LabelNode: "node-1", replica.LabelDataset: hash, replica.LabelOwner: "u-1"}
	o.Annotations[replica.AnnotationEviction] = "LRU"
	o.Annotations[replica.AnnotationReaders] = "vm-images"
	o.Annotations[replica.AnnotationOwner] = "vm"
	o.Annotations[replica.AnnotationComplete] = replica.Complete
	o.Spec.FlexVolume.Options[volume.OptionKind] = "dataset"
	o.Spec.FlexVolume.Options[volume.OptionVolume] = "ds-" + hash
	return o
}

func TestReplicaOf(t *testing.T) {
	whole := persistentvolume.Replica{Dataset: hash, Policy: volume.EvictLRU, Complete: true, Readers: "vm-images", Owner: "vm", OwnerUID: "u-1"}
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		change func(*corev1.PersistentVolume)
		want   func(*persistentvolume.Replica)
	}{
		"whole":             {func(*corev1.PersistentVolume) {}, func(*persistentvolume.Replica) {}},
		"no policy":         {func(o *corev1.PersistentVolume) { delete(o.Annotations, replica.AnnotationEviction) }, func(r *persistentvolume.Replica) { r.Policy = volume.EvictNever }},
		"unknown policy":    {func(o *corev1.PersistentVolume) { o.Annotations[replica.AnnotationEviction] = "MRU" }, func(r *persistentvolume.Replica) { r.Policy = volume.EvictNever }},
		"complete, almost":  {func(o *corev1.PersistentVolume) { o.Annotations[replica.AnnotationComplete] = "True" }, func(r *persistentvolume.Replica) { r.Complete = false }},
		"a claim's volume":  {func(o *corev1.PersistentVolume) { o.Spec.FlexVolume.Options[volume.OptionKind] = "claim" }, func(r *persistentvolume.Replica) { *r = persistentvolume.Replica{} }},
		"another name":      {func(o *corev1.PersistentVolume) { o.Spec.FlexVolume.Options[volume.OptionVolume] = "ds-0" }, func(r *persistentvolume.Replica) { *r = persistentvolume.Replica{} }},
		"no label":          {func(o *corev1.PersistentVolume) { delete(o.Labels, replica.LabelDataset) }, func(r *persistentvolume.Replica) { *r = persistentvolume.Replica{} }},
		"a label of others": {func(o *corev1.PersistentVolume) { o.Labels[replica.LabelDataset] = "images" }, func(r *persistentvolume.Replica) { *r = persistentvolume.Replica{} }},
		"asked for": {
			func(o *corev1.PersistentVolume) { o.Annotations[replica.AnnotationEvict] = "2026-11-21T13:00:00+01:00" },
			func(r *persistentvolume.Replica) { r.Asked = at },
		},
		"all the way": {
			func(o *corev1.PersistentVolume) {
				for _, a := range []string{replica.AnnotationEvict, replica.AnnotationUnlabelled, replica.AnnotationEvictable} {
					o.Annotations[a] = "2026-11-21T12:00:00Z"
				}
			},
			func(r *persistentvolume.Replica) { r.Asked, r.Unlabelled, r.Evictable = at, at, at },
		},
		"a time that is none": {
			func(o *corev1.PersistentVolume) { o.Annotations[replica.AnnotationEvictable] = "yes" },
			func(r *persistentvolume.Replica) { r.Garbled = true },
		},
		"an empty time": {
			func(o *corev1.PersistentVolume) { o.Annotations[replica.AnnotationEvict] = "" },
			func(r *persistentvolume.Replica) { r.Garbled = true },
		},
	} {
		t.Run(name, func(t *testing.T) {
			o, want := replicaVolume(), whole
			tt.change(o)
			tt.want(&want)
			got, err := persistentvolume.Parse(o)
			require.NoError(t, err, "what cannot be read of a replica keeps it from eviction alone")
			require.Equal(t, want, got.Replica)
			require.Equal(t, want.EvictionCommitted(), !got.Replica.Evictable.IsZero())
			again, err := persistentvolume.Parse(o)
			require.NoError(t, err)
			require.True(t, got == again, "what has not changed is the same")
		})
	}
	require.False(t, persistentvolume.Replica{Evictable: at, Garbled: true}.EvictionCommitted())
}

func TestReadsOfAReplica(t *testing.T) {
	o := replicaVolume()
	for _, a := range []string{replica.AnnotationEvict, replica.AnnotationUnlabelled, replica.AnnotationEvictable} {
		o.Annotations[a] = "2026-11-21T12:00:00Z"
	}
	for name := range o.Annotations {
		require.True(t, persistentvolume.Reads(name), name)
	}
	require.False(t, persistentvolume.Reads(pv.AnnotationProvisionedBy))
}

// TestReadersExplainNoVolume covers a PersistentVolume for readers, which is tied to no node, with the label of
// a node that somebody has given it: it is not parsed as a replica.
func TestReadersExplainNoVolume(t *testing.T) {
	o := replicaVolume()
	o.Spec.FlexVolume.Options[volume.OptionReadOnly] = "true"
	_, err := persistentvolume.Parse(o)
	require.ErrorContains(t, err, `readOnly "true": is for the readers of a dataset`)
	require.ErrorContains(t, err, "remove the label flexlvm.io/node")
	require.Contains(t, persistentvolume.NamesOf(o), "ds-"+hash, "what it means counts as wanted meanwhile")
	o.Spec.FlexVolume.Options[volume.OptionReadOnly] = "false"
	_, err = persistentvolume.Parse(o)
	require.NoError(t, err)
	o.Spec.FlexVolume.Options[volume.OptionReadOnly] = "maybe"
	_, err = persistentvolume.Parse(o)
	require.ErrorContains(t, err, `readOnly "maybe"`)
}
