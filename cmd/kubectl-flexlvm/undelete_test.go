package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/overview"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
)

const fsUUID = "0f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11"

// cluster returns an API server with a node that reports a volume of a deleted claim. Its daemon calls
// daemon for a PersistentVolume that is marked for undelete.
func cluster(t *testing.T, daemon func(client.Client, *corev1.PersistentVolume), objects ...client.Object) client.Client {
	t.Helper()
	storage := &flexlvmv1.NodeStorage{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Status: flexlvmv1.NodeStorageStatus{
		Pools: []flexlvmv1.Pool{{Name: "flexlvm", UUID: "XfRyGj-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3S", Layout: "linear"}},
		Released: []flexlvmv1.ReleasedVolume{{
			Pool: "flexlvm", Name: "pvc-3", State: "unreferenced", Namespace: "shop", Size: resource.MustParse("1Gi"), Room: resource.MustParse("1148Mi"),
			Created: metav1.Date(2026, 11, 1, 9, 0, 0, 0, time.UTC), Released: metav1.Date(2026, 11, 20, 18, 2, 11, 0, time.UTC),
			FilesystemUUID: fsUUID, Origin: &flexlvmv1.ReleasedOrigin{Claim: "data", StorageClassName: "fast", AccessModes: []string{"ReadWriteOncePod"}},
		}},
	}}
	objects = append(objects, storage,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{corev1.LabelHostname: "host-1"}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: "7f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11"}})
	s, err := scheme()
	require.NoError(t, err)
	return fake.NewClientBuilder().WithScheme(s).WithObjects(objects...).
		WithIndex(&corev1.Event{}, "involvedObject.name", func(o client.Object) []string { return []string{o.(*corev1.Event).InvolvedObject.Name} }).
		WithIndex(&corev1.Event{}, "reason", func(o client.Object) []string { return []string{o.(*corev1.Event).Reason} }).
		WithInterceptorFuncs(interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if err := c.Get(ctx, key, o, options...); err != nil {
				return err
			}
			if object, is := o.(*corev1.PersistentVolume); is && object.Annotations[pv.AnnotationUndelete] != "" {
				daemon(c, object)
			}
			return nil
		}}).Build()
}

// brings is a daemon that completes the undelete.
func brings(t *testing.T) func(client.Client, *corev1.PersistentVolume) {
	return func(c client.Client, object *corev1.PersistentVolume) {
		delete(object.Annotations, pv.AnnotationUndelete)
		require.NoError(t, c.Update(t.Context(), object.DeepCopy()))
	}
}

func asked(change func(*undeleteOptions)) *undeleteOptions {
	o := &undeleteOptions{wanted: overview.Wanted{Namespace: "shop", Claim: "data"}, policy: "Retain", wait: 10 * time.Second}
	if change != nil {
		change(o)
	}
	return o
}

func TestUndelete(t *testing.T) {
	c := cluster(t, brings(t))
	var out bytes.Buffer
	require.NoError(t, asked(nil).undelete(t.Context(), c, &out))
	require.Equal(t, "volume pvc-3 is ready again, for claim shop/data (released 2026-11-20 18:02:11Z, on node node-1)\n", out.String())
	object, claim := &corev1.PersistentVolume{}, &corev1.PersistentVolumeClaim{}
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "pvc-3"}, object))
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "data"}, claim))
	require.Equal(t, "pvc-3", claim.Spec.VolumeName)
	require.Equal(t, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}, claim.Spec.AccessModes)
	require.Equal(t, "fast", *claim.Spec.StorageClassName)
	parsed, err := persistentvolume.Parse(object)
	require.NoError(t, err)
	require.Equal(t, fsUUID, parsed.FS)
	require.Equal(t, corev1.PersistentVolumeReclaimRetain, parsed.ReclaimPolicy)
	require.Equal(t, []string{"host-1"}, persistentvolume.Hostnames(object))

	// Undelete can be repeated, also when the node no longer reports the volume.
	out.Reset()
	require.NoError(t, asked(nil).undelete(t.Context(), c, &out))
	require.Contains(t, out.String(), "is ready again")
	reportNothing(t, c)
	out.Reset()
	require.NoError(t, asked(nil).undelete(t.Context(), c, &out))
	require.Equal(t, "claim shop/data exists and its volume pvc-3 is ready: there is nothing to restore\n", out.String())
	require.ErrorContains(t, asked(func(o *undeleteOptions) { o.wanted.Namespace = "thief" }).undelete(t.Context(), c, &out), "no node reports")
}

// killedBeforeClaim runs undelete, and lets it fail between creating the PersistentVolume and the claim.
func killedBeforeClaim(t *testing.T, c client.Client) {
	t.Helper()
	failing := interceptor.NewClient(c.(client.WithWatch), interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
		if _, is := o.(*corev1.PersistentVolumeClaim); is {
			return errors.New("killed")
		}
		return c.Create(ctx, o, options...)
	}})
	require.ErrorContains(t, asked(nil).undelete(t.Context(), failing, &bytes.Buffer{}), "run undelete again to continue")
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "pvc-3"}, &corev1.PersistentVolume{}))
}

// reportNothing removes the released volume from the node's report.
func reportNothing(t *testing.T, c client.Client) {
	t.Helper()
	storage := &flexlvmv1.NodeStorage{}
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "node-1"}, storage))
	storage.Status.Released = nil
	require.NoError(t, c.Update(t.Context(), storage))
}

// A node whose name is too long for a label is named in full.
func TestUndeleteGoesOnWithALongNodeName(t *testing.T) {
	long := strings.Repeat("n", 70)
	c := cluster(t, brings(t), &flexlvmv1.NodeStorage{ObjectMeta: metav1.ObjectMeta{Name: long}})
	killedBeforeClaim(t, c)
	reportNothing(t, c)
	object := &corev1.PersistentVolume{}
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "pvc-3"}, object))
	object.Labels[pv.LabelNode] = pv.NodeLabelValue(long)
	require.NoError(t, c.Update(t.Context(), object))
	var out bytes.Buffer
	require.NoError(t, asked(nil).undelete(t.Context(), c, &out))
	require.Equal(t, "volume pvc-3 is ready again, for claim shop/data (on node "+long+")\n", out.String())
}

// Killed between creating the PersistentVolume and the claim, undelete creates the claim on the next
// call, whether or not the node has restored the volume meanwhile.
func TestUndeleteGoesOn(t *testing.T) {
	for _, listed := range []bool{true, false} {
		c := cluster(t, brings(t))
		killedBeforeClaim(t, c)
		var out bytes.Buffer
		if !listed {
			reportNothing(t, c)
		}
		claim := &corev1.PersistentVolumeClaim{}
		if !listed {
			require.ErrorContains(t, asked(func(o *undeleteOptions) { o.dryRun = true }).undelete(t.Context(), c, &out), "PersistentVolume pvc-3 already exists from an earlier run; without --dry-run its claim is created")
			require.Error(t, c.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "data"}, claim), "a dry run makes nothing")
		}
		require.NoError(t, asked(nil).undelete(t.Context(), c, &out))
		require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "data"}, claim))
		require.Equal(t, "pvc-3", claim.Spec.VolumeName)
		require.Equal(t, resource.MustParse("1Gi"), claim.Spec.Resources.Requests[corev1.ResourceStorage])
	}
}

func TestUndeleteOfWhatTheNodeRefuses(t *testing.T) {
	c := cluster(t, func(c client.Client, object *corev1.PersistentVolume) {
		_ = c.Create(t.Context(), &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: "default", Name: "e"},
			InvolvedObject: corev1.ObjectReference{Name: object.Name, UID: object.UID}, Reason: "VolumeNotUndeleted", Message: "it was evicted",
		})
	})
	require.ErrorContains(t, asked(nil).undelete(t.Context(), c, &bytes.Buffer{}), "the node reports: it was evicted")

	c = cluster(t, func(client.Client, *corev1.PersistentVolume) {})
	require.ErrorContains(t, asked(func(o *undeleteOptions) { o.wait = time.Second }).undelete(t.Context(), c, &bytes.Buffer{}), "did not restore the volume within 1s")
	var out bytes.Buffer
	require.NoError(t, asked(func(o *undeleteOptions) { o.wait = 0 }).undelete(t.Context(), c, &out))
	require.Contains(t, out.String(), "are created")
}

func TestUndeleteMakesNothingWhere(t *testing.T) {
	claim := func(name, of string) client.Object {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: of}}
	}
	old := func(change func(*corev1.PersistentVolume)) client.Object {
		c := cluster(t, brings(t))
		require.NoError(t, asked(nil).undelete(t.Context(), c, &bytes.Buffer{}))
		object := &corev1.PersistentVolume{}
		require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "pvc-3"}, object))
		object.ResourceVersion = ""
		change(object)
		return object
	}
	for says, tt := range map[string]struct {
		there  client.Object
		change func(*undeleteOptions)
	}{
		"already exists, with another volume": {there: claim("data", "pvc-9")},
		"make sure that the StatefulSet's persistentVolumeClaimRetentionPolicy.whenScaled is not Delete": {there: claim("data", "pvc-9")},
		"so there is nothing to restore yet": {there: old(func(o *corev1.PersistentVolume) {
			delete(o.Spec.FlexVolume.Options, "filesystemUUID")
		})},
		"was already restored, for claim shop/other": {there: old(func(o *corev1.PersistentVolume) { o.Spec.ClaimRef.Name = "other" })},
		"delete it, and try again":                   {there: old(func(o *corev1.PersistentVolume) { o.Status.Phase = corev1.VolumeReleased })},
		"is not known; it is one of flex, csi":       {there: claim("x", ""), change: func(o *undeleteOptions) { o.door = "window" }},
	} {
		c := cluster(t, brings(t), tt.there)
		require.ErrorContains(t, asked(tt.change).undelete(t.Context(), c, &bytes.Buffer{}), says)
		if _, volume := tt.there.(*corev1.PersistentVolume); !volume {
			require.Error(t, c.Get(t.Context(), client.ObjectKey{Name: "pvc-3"}, &corev1.PersistentVolume{}))
		}
	}
	var out bytes.Buffer
	c := cluster(t, brings(t))
	require.NoError(t, asked(func(o *undeleteOptions) { o.dryRun, o.as = true, "again" }).undelete(t.Context(), c, &out))
	require.Contains(t, out.String(), "  name: again\n")
	require.Contains(t, out.String(), "flexlvm.io/undelete: "+fsUUID+"\n")
	require.Error(t, c.Get(t.Context(), client.ObjectKey{Name: "pvc-3"}, &corev1.PersistentVolume{}))
}

// A repeated undelete with a flag that contradicts the existing objects fails, whether or not the node
// has restored the volume meanwhile. A flag that is not given does not change anything.
func TestUndeleteAgainWithOtherFlags(t *testing.T) {
	csi := func(o *undeleteOptions) { o.door, o.class, o.policy, o.policyGiven = "csi", "fast", "Delete", true }
	for says, change := range map[string]func(*undeleteOptions){
		"": csi,
		"with --reclaim-policy Delete instead of Retain": func(o *undeleteOptions) { o.policyGiven = true },
		"with --storage-class fast instead of slow":      func(o *undeleteOptions) { o.class = "slow" },
		"with --door csi instead of flex":                func(o *undeleteOptions) { o.door = "flex" },
		"with --secret none instead of shop/key":         func(o *undeleteOptions) { o.secret = "shop/key" },
	} {
		for _, listed := range []bool{true, false} {
			if listed && strings.HasPrefix(says, "with --secret") {
				continue // refused earlier: the volume is not encrypted
			}
			c := cluster(t, brings(t))
			require.NoError(t, asked(csi).undelete(t.Context(), c, &bytes.Buffer{}))
			if !listed {
				storage := &flexlvmv1.NodeStorage{}
				require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "node-1"}, storage))
				storage.Status.Released = nil
				require.NoError(t, c.Update(t.Context(), storage))
			}
			require.NoError(t, asked(nil).undelete(t.Context(), c, &bytes.Buffer{}), "no flag is given")
			err := asked(change).undelete(t.Context(), c, &bytes.Buffer{})
			if says == "" {
				require.NoError(t, err)
				continue
			}
			require.ErrorContains(t, err, says)
			require.ErrorContains(t, err, "leave the flag out")
		}
	}
}
