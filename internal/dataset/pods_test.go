package dataset

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/replica"
)

// The pod list that all volumes of a round share has the same pods for each volume as a list for that volume
// alone.
func TestConsumersOnce(t *testing.T) {
	r := newRig(t)
	s := &cacheView{}
	for _, id := range []string{"a", "b", "c"} {
		s.observed = append(s.observed, &Observed{Owner: managerOf(1), Config: flexlvmv1.VolumeConfig{ID: id}, Replicas: map[int]*Replica{0: {}, 1: {}}})
	}
	s.observed[2].SharedBy = []client.ObjectKey{{Namespace: "team", Name: "theirs"}}
	for i, uses := range [][]string{{"v-a-0", "v-a"}, {"v-a-1", "v-b-0"}, {"else"}, {}} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("p-%d", i)}, Spec: corev1.PodSpec{NodeName: "node-1"}}
		for _, claim := range uses {
			pod.Spec.Volumes = append(pod.Spec.Volumes, podOf(claim).Spec.Volumes...)
		}
		require.NoError(t, r.client.Create(t.Context(), pod))
	}
	theirs := podOf("theirs")
	theirs.Namespace = "team"
	require.NoError(t, r.client.Create(t.Context(), theirs))
	alone := make([][]user, len(s.observed))
	for i, observed := range s.observed {
		require.NoError(t, r.consumers(t.Context(), observed, func(pod *corev1.Pod) {
			alone[i] = append(alone[i], user{pod.Name, pod.Spec.NodeName})
		}))
		require.NotEmpty(t, alone[i])
	}

	lists, begun := 0, time.Now()
	now := begun
	r.now = func() time.Time { return now }
	r.Pods = func(ctx context.Context, namespace string, each func(*corev1.Pod)) error {
		lists++
		now = now.Add(2 * podsFresh) // a slow list
		return r.pods(ctx, namespace, each)
	}
	for i, observed := range s.observed {
		together, at, err := r.consumersOnce(t.Context(), observed, s)
		require.NoError(t, err)
		require.Equal(t, alone[i], together)
		require.Equal(t, begun, at, "it is as old as the list")
	}
	require.Equal(t, 2, lists, "one for each namespace")
	now = now.Add(podsFresh + time.Second)
	_, at, err := r.consumersOnce(t.Context(), s.observed[0], s)
	require.NoError(t, err)
	require.Equal(t, 3, lists, "an old list is no answer")
	require.True(t, at.After(begun))
	r.Pods = func(context.Context, string, func(*corev1.Pod)) error { return errChanged }
	_, _, err = r.consumersOnce(t.Context(), s.observed[0], &cacheView{observed: s.observed})
	require.ErrorIs(t, err, errChanged, "what is not known is no answer")
}

// Before a mirrored claim is released, the API server is asked whether a pod uses it, even if no upload is due.
func TestPodsAreLookedForBeforeAMirrorGoes(t *testing.T) {
	r := newRig(t)
	observed := &Observed{Owner: managerOf(1), Config: flexlvmv1.VolumeConfig{ID: "a"}, Replicas: map[int]*Replica{0: {}}}
	gives := []Action{{Verb: RemoveFinalizer, Object: &corev1.PersistentVolumeClaim{}}}
	require.NoError(t, r.confirmUnused(t.Context(), observed, gives))
	pod := podOf("v-a-0")
	pod.Namespace = "ns"
	require.NoError(t, r.client.Create(t.Context(), pod))
	require.ErrorIs(t, r.confirmUnused(t.Context(), observed, gives), errChanged)
	observed.Consumers = []string{pod.Name}
	require.NoError(t, r.confirmUnused(t.Context(), observed, gives), "the plan knew of it")
}

// However many volumes pods may have written to, and however slow listing pods is, all volumes are uploaded,
// and no upload is repeated because of slow lists.
func TestManyUploads(t *testing.T) {
	r := newRig(t)
	vm := &flexlvmv1.VolumeManager{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "v"}}
	for i := range 8 {
		v := volumeOf(flexlvmv1.SourceS3Dev, 1, s3Options(options{"outputURL": flexlvmv1.OptionValue(fmt.Sprintf("s3://out/%d/", i))}))
		v.ID = fmt.Sprintf("a%d", i)
		vm.Spec.Volumes = append(vm.Spec.Volumes, v)
	}
	require.NoError(t, r.client.Create(t.Context(), vm))
	for rounds := 0; r.get().Status.State != flexlvmv1.StateRunning; rounds++ {
		require.Less(t, rounds, 24, "%+v", r.get().Status)
		require.NoError(t, r.look())
	}
	r.done, vm = nil, r.get()
	vm.Spec.State = flexlvmv1.StateCompleted
	require.NoError(t, r.client.Update(t.Context(), vm))
	lists, passed := 0, time.Duration(0)
	r.now = func() time.Time { return time.Now().Add(passed) }
	r.Pods = func(ctx context.Context, namespace string, each func(*corev1.Pod)) error {
		lists, passed = lists+1, passed+5*time.Second
		return r.pods(ctx, namespace, each)
	}
	for rounds := 0; r.get().Status.State != flexlvmv1.StateCompleted; rounds++ {
		require.Less(t, rounds, 24, "%+v", r.get().Status)
		before := lists
		require.NoError(t, r.look())
		passed += 3 * time.Second
		if len(r.deleted()) == 0 {
			require.LessOrEqual(t, lists-before, 1)
			require.LessOrEqual(t, len(r.done), len(vm.Spec.Volumes), "uploads that have begun")
		}
	}
}

// Anybody may label a pod as a loader's: the cache keeps only the fields that are used.
func TestCachedPodsAreStripped(t *testing.T) {
	pod := podOf("much")
	pod.Spec.NodeName, pod.Status.PodIP = "node-1", "10.0.0.1"
	pod.Labels = map[string]string{replica.LabelOwner: "uid", labelReplica: "0"}
	pod.Annotations = map[string]string{replica.AnnotationOwner: "v", replica.AnnotationVolumeID: "a", "much": "text"}
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	want := pod.DeepCopy()
	want.Spec, want.ManagedFields = corev1.PodSpec{NodeName: "node-1"}, nil
	delete(want.Annotations, "much")
	got, err := stripPod(pod)
	require.NoError(t, err)
	require.Equal(t, want, got)
	for kind, of := range cacheOptions().ByObject {
		_, pods := kind.(*corev1.Pod)
		_, managers := kind.(*flexlvmv1.VolumeManager)
		require.Equal(t, pods || managers, of.Transform != nil)
	}
}

// The cache keeps only the annotations of VolumeManagers that are used. What is written does not remove the others.
func TestCachedVolumeManagersAreStripped(t *testing.T) {
	r := newRig(t)
	vm := r.manager(1)
	vm.Annotations = map[string]string{AnnotationRetry: "1", replica.AnnotationRefresh: "2", "much": strings.Repeat("x", 200<<10)}
	require.NoError(t, r.client.Update(t.Context(), vm))
	got, err := stripManager(vm.DeepCopy())
	require.NoError(t, err)
	require.Equal(t, map[string]string{AnnotationRetry: "1", replica.AnnotationRefresh: "2"}, got.(*flexlvmv1.VolumeManager).Annotations)

	r.cached = interceptor.NewClient(r.client, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, o ...client.GetOption) error {
		err := c.Get(ctx, key, object, o...)
		_, err2 := stripManager(object)
		return errors.Join(err, err2)
	}})
	r.runs()
	require.NotEmpty(t, r.get().Status.Volumes)
	require.Equal(t, vm.Annotations, r.get().Annotations)
	require.NoError(t, r.client.Delete(t.Context(), r.get()))
	for range 16 {
		require.NoError(t, r.look())
	}
	require.Error(t, r.client.Get(t.Context(), client.ObjectKeyFromObject(vm), vm), "its finalizer is removed")
}
