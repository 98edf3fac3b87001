package claim_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/claim"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const hash = "0123456789abcdef"

// replicaVolume is the PersistentVolume of a replica as the provisioner writes it,
// when its dataset is complete.
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
	whole := claim.Replica{Dataset: hash, Policy: volume.EvictLRU, Complete: true, Readers: "vm-images", Owner: "vm", OwnerUID: "u-1"}
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		change func(*corev1.PersistentVolume)
		want   func(*claim.Replica)
	}{
		"whole":             {func(*corev1.PersistentVolume) {}, func(*claim.Replica) {}},
		"no policy":         {func(o *corev1.PersistentVolume) { delete(o.Annotations, replica.AnnotationEviction) }, func(r *claim.Replica) { r.Policy = volume.EvictNever }},
		"unknown policy":    {func(o *corev1.PersistentVolume) { o.Annotations[replica.AnnotationEviction] = "MRU" }, func(r *claim.Replica) { r.Policy = volume.EvictNever }},
		"complete, almost":  {func(o *corev1.PersistentVolume) { o.Annotations[replica.AnnotationComplete] = "True" }, func(r *claim.Replica) { r.Complete = false }},
		"a claim's volume":  {func(o *corev1.PersistentVolume) { o.Spec.FlexVolume.Options[volume.OptionKind] = "claim" }, func(r *claim.Replica) { *r = claim.Replica{} }},
		"another name":      {func(o *corev1.PersistentVolume) { o.Spec.FlexVolume.Options[volume.OptionVolume] = "ds-0" }, func(r *claim.Replica) { *r = claim.Replica{} }},
		"no label":          {func(o *corev1.PersistentVolume) { delete(o.Labels, replica.LabelDataset) }, func(r *claim.Replica) { *r = claim.Replica{} }},
		"a label of others": {func(o *corev1.PersistentVolume) { o.Labels[replica.LabelDataset] = "images" }, func(r *claim.Replica) { *r = claim.Replica{} }},
		"asked for": {
			func(o *corev1.PersistentVolume) { o.Annotations[replica.AnnotationEvict] = "2026-11-21T13:00:00+01:00" },
			func(r *claim.Replica) { r.Asked = at },
		},
		"all the way": {
			func(o *corev1.PersistentVolume) {
				for _, a := range []string{replica.AnnotationEvict, replica.AnnotationUnlabelled, replica.AnnotationEvictable} {
					o.Annotations[a] = "2026-11-21T12:00:00Z"
				}
			},
			func(r *claim.Replica) { r.Asked, r.Unlabelled, r.Evictable = at, at, at },
		},
		"a time that is none": {
			func(o *corev1.PersistentVolume) { o.Annotations[replica.AnnotationEvictable] = "yes" },
			func(r *claim.Replica) { r.Garbled = true },
		},
		"an empty time": {
			func(o *corev1.PersistentVolume) { o.Annotations[replica.AnnotationEvict] = "" },
			func(r *claim.Replica) { r.Garbled = true },
		},
	} {
		t.Run(name, func(t *testing.T) {
			o, want := replicaVolume(), whole
			tt.change(o)
			tt.want(&want)
			got, err := claim.Of(o)
			require.NoError(t, err, "what cannot be read of a replica keeps it from eviction alone")
			require.Equal(t, want, got.Replica)
			require.Equal(t, want.Going(), !got.Replica.Evictable.IsZero())
			again, err := claim.Of(o)
			require.NoError(t, err)
			require.True(t, got == again, "what has not changed is the same")
		})
	}
	require.False(t, claim.Replica{Evictable: at, Garbled: true}.Going())
}

func TestReadsOfAReplica(t *testing.T) {
	o := replicaVolume()
	for _, a := range []string{replica.AnnotationEvict, replica.AnnotationUnlabelled, replica.AnnotationEvictable} {
		o.Annotations[a] = "2026-11-21T12:00:00Z"
	}
	for name := range o.Annotations {
		require.True(t, claim.Reads(name), name)
	}
	require.False(t, claim.Reads(pv.AnnotationProvisionedBy))
}

// TestReadersExplainNoVolume: a PersistentVolume for readers is tied to no node;
// where somebody has given it the label of one, it is not taken for a replica.
func TestReadersExplainNoVolume(t *testing.T) {
	o := replicaVolume()
	o.Spec.FlexVolume.Options[volume.OptionReadOnly] = "true"
	_, err := claim.Of(o)
	require.ErrorContains(t, err, `readOnly "true": is for the readers of a dataset`)
	require.ErrorContains(t, err, "remove the label flexlvm.io/node")
	require.Contains(t, claim.NamesOf(o), "ds-"+hash, "what it means counts as wanted meanwhile")
	o.Spec.FlexVolume.Options[volume.OptionReadOnly] = "false"
	_, err = claim.Of(o)
	require.NoError(t, err)
	o.Spec.FlexVolume.Options[volume.OptionReadOnly] = "maybe"
	_, err = claim.Of(o)
	require.ErrorContains(t, err, `readOnly "maybe"`)
}
