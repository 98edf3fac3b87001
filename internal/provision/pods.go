package provision

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/flexlvm/flexlvm/internal/kube"
	"github.com/flexlvm/flexlvm/internal/kubeobject"
)

// unscheduled selects the pods that have no node yet. Only they matter, because the scheduler holds a
// pod back while its claims are provisioned, and they are few.
var unscheduled = fields.OneTermEqualSelector("spec.nodeName", "").String()

// podResync is how often waiting pods are processed without a change: the cause of the wait may change
// without an event of the pod, and a claim may reach its cache after the pod.
const podResync = 15 * time.Second

// byClaim is the index of pods by the claims that they use.
const byClaim = "claim"

// waitingPods caches the pods that wait for a node.
type waitingPods struct {
	api      *kube.Client
	informer cache.SharedIndexInformer
}

func newWaitingPods(client kubernetes.Interface, api *kube.Client, again time.Duration) (*waitingPods, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(client, again,
		informers.WithTransform(stripPodTransform),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = unscheduled }))
	informer := factory.Core().V1().Pods().Informer()
	err := informer.AddIndexers(cache.Indexers{byClaim: func(obj any) ([]string, error) {
		return kubeobject.ClaimsOf(obj.(*corev1.Pod)), nil
	}})
	if err != nil {
		return nil, fmt.Errorf("index pods by claim: %w", err)
	}
	return &waitingPods{api: api, informer: informer}, nil
}

// using returns the pods without a node that use a claim. If the cache has none, it lists them from the
// API server: the scheduler may have seen a pod before this process has.
func (w *waitingPods) using(ctx context.Context, namespace, claim string) ([]*corev1.Pod, error) {
	found, err := w.informer.GetIndexer().ByIndex(byClaim, namespace+"/"+claim)
	if err != nil {
		return nil, err
	}
	var out []*corev1.Pod
	for _, obj := range found {
		out = append(out, obj.(*corev1.Pod))
	}
	if len(out) > 0 {
		return out, nil
	}
	err = w.api.UnscheduledPods(ctx, namespace, func(pod *corev1.Pod) {
		if slices.Contains(kubeobject.ClaimsOf(pod), namespace+"/"+claim) {
			out = append(out, stripPod(pod))
		}
	})
	return out, err
}

// otherClaims returns the names of the other claims of a pod, without duplicates.
func otherClaims(pod *corev1.Pod, claim string) []string {
	var out []string
	for _, key := range kubeobject.ClaimsOf(pod) {
		if name := strings.TrimPrefix(key, pod.Namespace+"/"); name != claim {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// stripPodTransform is stripPod for a cache.
func stripPodTransform(obj any) (any, error) {
	if pod, is := obj.(*corev1.Pod); is {
		return stripPod(pod), nil
	}
	return obj, nil
}

// stripPod keeps the fields of a pod that this package reads.
func stripPod(pod *corev1.Pod) *corev1.Pod {
	out := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
		ResourceVersion: pod.ResourceVersion, DeletionTimestamp: pod.DeletionTimestamp,
	}}
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			out.Spec.Volumes = append(out.Spec.Volumes, v)
		}
		if v.Ephemeral != nil {
			out.Spec.Volumes = append(out.Spec.Volumes, corev1.Volume{Name: v.Name, VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}})
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			out.Status.Conditions = append(out.Status.Conditions, c)
		}
	}
	return out
}
