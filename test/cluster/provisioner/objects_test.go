//go:build cluster

package provisioner_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/test/await"
)

func ptr[T any](v T) *T { return &v }

// space is a namespace of one test.
type space struct {
	*bed
	t    *testing.T
	name string
}

// namespace creates a namespace, and at the end removes what the test left in the cluster.
func (b *bed) namespace(t *testing.T, name string) *space {
	t.Helper()
	_, err := b.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(t, err)
	s := &space{bed: b, t: t, name: name}
	await.Until(t, longest, func() string {
		if _, err := b.client.CoreV1().ServiceAccounts(name).Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		s.deletePods(ctx)
		require.NoError(t, b.client.CoreV1().PersistentVolumeClaims(name).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
		await.Until(t, longest, func() string {
			volumes := s.volumes(ctx)
			for _, v := range volumes {
				s.takeBack(ctx, v.Name)
			}
			return await.Missing(len(volumes) == 0, "%d volumes are left", len(volumes))
		})
	})
	return s
}

// deletePods deletes pods without a grace period, because there is no kubelet here.
func (s *space) deletePods(ctx context.Context) {
	require.NoError(s.t, s.client.CoreV1().Pods(s.name).DeleteCollection(ctx,
		metav1.DeleteOptions{GracePeriodSeconds: ptr(int64(0))}, metav1.ListOptions{}))
}

// takeBack does what a node does once its logical volume is gone.
func (s *space) takeBack(ctx context.Context, volume string) {
	volumes := s.client.CoreV1().PersistentVolumes()
	v, err := volumes.Get(ctx, volume, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return
	}
	require.NoError(s.t, err)
	v.Finalizers = nil
	if _, err := volumes.Update(ctx, v, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		require.NoError(s.t, err)
	}
	if err := volumes.Delete(ctx, volume, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		require.NoError(s.t, err)
	}
}

// volumes returns the PersistentVolumes of this namespace's claims.
func (s *space) volumes(ctx context.Context) []corev1.PersistentVolume {
	all, err := s.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	require.NoError(s.t, err)
	var ours []corev1.PersistentVolume
	for _, v := range all.Items {
		if v.Spec.ClaimRef != nil && v.Spec.ClaimRef.Namespace == s.name {
			ours = append(ours, v)
		}
	}
	return ours
}

// class creates a flexlvm StorageClass for the duration of the test.
func (s *space) class(name string, change func(*storagev1.StorageClass)) {
	s.t.Helper()
	class := &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: name},
		Provisioner:       "flexlvm.io",
		VolumeBindingMode: ptr(storagev1.VolumeBindingWaitForFirstConsumer),
	}
	if change != nil {
		change(class)
	}
	classes := s.client.StorageV1().StorageClasses()
	_, err := classes.Create(s.t.Context(), class, metav1.CreateOptions{})
	require.NoError(s.t, err)
	s.t.Cleanup(func() {
		err := classes.Delete(context.WithoutCancel(s.t.Context()), name, metav1.DeleteOptions{})
		require.True(s.t, err == nil || apierrors.IsNotFound(err), err)
	})
}

// claim creates a claim of class flexlvm.
func (s *space) claim(name string, change func(*corev1.PersistentVolumeClaim)) {
	s.t.Helper()
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr("flexlvm"),
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        requests("64Mi"),
		},
	}
	if change != nil {
		change(claim)
	}
	_, err := s.client.CoreV1().PersistentVolumeClaims(s.name).Create(s.t.Context(), claim, metav1.CreateOptions{})
	require.NoError(s.t, err)
}

func requests(quantity string) corev1.VolumeResourceRequirements {
	return corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(quantity)}}
}

// pod creates a pod that uses a claim, optionally on a certain node.
func (s *space) pod(claim, node string) {
	s.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: claim},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "busybox:1.36"}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}},
		},
	}
	if node != "" {
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}},
		}}
	}
	_, err := s.client.CoreV1().Pods(s.name).Create(s.t.Context(), pod, metav1.CreateOptions{})
	require.NoError(s.t, err)
}

// many creates n claims and their pods.
func (s *space) many(prefix string, n int) {
	s.t.Helper()
	for i := range n {
		name := fmt.Sprintf("%s-%d", prefix, i)
		s.claim(name, nil)
		s.pod(name, "")
	}
}

// unbound lists the claims that have no volume yet.
func (s *space) unbound(ctx context.Context) string {
	claims, err := s.client.CoreV1().PersistentVolumeClaims(s.name).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	var names []string
	for _, c := range claims.Items {
		if c.Status.Phase != corev1.ClaimBound {
			names = append(names, c.Name)
		}
	}
	return await.Missing(len(names) == 0, "%d of %d claims are not bound: %s", len(names), len(claims.Items), strings.Join(names, " "))
}

// oneEach checks that there is exactly one volume for each claim.
func (s *space) oneEach(n int) {
	s.t.Helper()
	claims := map[string]bool{}
	for _, v := range s.volumes(s.t.Context()) {
		require.Equal(s.t, corev1.VolumeBound, v.Status.Phase, v.Name)
		require.Equal(s.t, "pvc-"+string(v.Spec.ClaimRef.UID), v.Name)
		require.False(s.t, claims[v.Spec.ClaimRef.Name], "claim %s has two volumes", v.Spec.ClaimRef.Name)
		claims[v.Spec.ClaimRef.Name] = true
	}
	require.Len(s.t, claims, n)
}

// volumeOf waits until a claim is bound, and returns its volume.
func (s *space) volumeOf(claim string) *corev1.PersistentVolume {
	s.t.Helper()
	var volume *corev1.PersistentVolume
	await.Until(s.t, longest, func() string {
		c, err := s.client.CoreV1().PersistentVolumeClaims(s.name).Get(s.t.Context(), claim, metav1.GetOptions{})
		if err != nil || c.Status.Phase != corev1.ClaimBound {
			return fmt.Sprintf("claim %s is not bound; events: %v (%v)", claim, s.events(s.name, "PersistentVolumeClaim", claim), err)
		}
		volume, err = s.client.CoreV1().PersistentVolumes().Get(s.t.Context(), c.Spec.VolumeName, metav1.GetOptions{})
		require.NoError(s.t, err)
		return ""
	})
	return volume
}

// caughtUp waits until the provisioner has processed all earlier events: it creates a claim that the
// provisioner refuses, and then another, because the provisioner may work on several at the same time.
// It returns the number of refusals that this caused.
func (b *bed) caughtUp(t *testing.T) (refused int) {
	t.Helper()
	s := &space{bed: b, t: t, name: metav1.NamespaceDefault}
	class := "refused-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	s.class(class, func(c *storagev1.StorageClass) {
		c.VolumeBindingMode = ptr(storagev1.VolumeBindingImmediate)
		c.Parameters = map[string]string{"colour": "red"}
	})
	for refused < 2 {
		refused++
		name := fmt.Sprintf("%s-%d", class, refused)
		s.claim(name, func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &class })
		s.event(s.name, "PersistentVolumeClaim", name, "ProvisioningFailed", `unknown parameter "colour"`)
		require.NoError(t, b.client.CoreV1().PersistentVolumeClaims(s.name).Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	return refused
}

// events returns an object's events as "reason: message".
func (s *space) events(namespace, kind, name string) []string {
	s.t.Helper()
	list, err := s.client.CoreV1().Events(namespace).List(s.t.Context(), metav1.ListOptions{
		FieldSelector: "involvedObject.kind=" + kind + ",involvedObject.name=" + name,
	})
	require.NoError(s.t, err)
	var out []string
	for _, e := range list.Items {
		out = append(out, e.Reason+": "+e.Message)
	}
	return out
}

// event waits for an event whose text contains all parts.
func (s *space) event(namespace, kind, name string, parts ...string) {
	s.t.Helper()
	await.Until(s.t, longest, func() string {
		events := s.events(namespace, kind, name)
		for _, e := range events {
			if containsAll(e, parts) {
				return ""
			}
		}
		return fmt.Sprintf("%s %s has no event with %q; it has %q", kind, name, parts, events)
	})
}

func containsAll(text string, parts []string) bool {
	for _, p := range parts {
		if !strings.Contains(text, p) {
			return false
		}
	}
	return true
}
