//go:build cluster

package dataset_test

import (
	"context"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/flexlvm/flexlvm/internal/pv"
)

// A script returns the status that kubelet reports for a loader's pod.
type script func(pod *corev1.Pod) *corev1.PodStatus

func terminated(code int32, report string) *corev1.PodStatus {
	phase := corev1.PodSucceeded
	if code != 0 {
		phase = corev1.PodFailed
	}
	return &corev1.PodStatus{Phase: phase, ContainerStatuses: []corev1.ContainerStatus{{
		Name: "loader", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Message: report, FinishedAt: metav1.Now()}},
	}}}
}

func running(ready corev1.ConditionStatus) *corev1.PodStatus {
	return &corev1.PodStatus{
		Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "loader", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
	}
}

func complete(*corev1.Pod) *corev1.PodStatus {
	return terminated(0, `{"state":"complete","filesDone":3,"filesTotal":3,"bytesDone":3145728,"bytesTotal":3145728}`)
}

// kubelets end every pod as its namespace's script says, remove pods that are being deleted, delete
// released volumes as the nodes' daemons do, and answer requests to evict.
type kubelets struct {
	*bed
	mu      sync.Mutex
	scripts map[string]script // by namespace; without a script a pod completes
	put     map[string]bool   // finished upload Jobs, as NAMESPACE/NAME

	// losing is held while a node is lost: if two of three nodes with volumes are missing at the same
	// time, the controller doubts that and deletes nothing.
	losing sync.Mutex
}

// uploads returns the Jobs of a namespace that have uploaded.
func (k *kubelets) uploads(namespace string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []string
	for name := range k.put {
		if job, is := strings.CutPrefix(name, namespace+"/"); is {
			out = append(out, job)
		}
	}
	return out
}

func (k *kubelets) play(namespace string, s script) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.scripts[namespace] = s
}

func (k *kubelets) run(ctx context.Context) {
	for tick := time.NewTicker(200 * time.Millisecond); ctx.Err() == nil; {
		k.pods(ctx)
		k.volumes(ctx)
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// pods acts on all pods once. A failure is retried in the next round.
func (k *kubelets) pods(ctx context.Context) {
	list := &corev1.PodList{}
	if k.client.List(ctx, list) != nil {
		return
	}
	for i := range list.Items {
		pod := &list.Items[i]
		if pod.Spec.NodeName == "" || pod.Namespace == system {
			continue
		}
		if pod.DeletionTimestamp != nil {
			_ = k.client.Delete(ctx, pod, client.GracePeriodSeconds(0))
			continue
		}
		if pod.Labels["flexlvm.io/volumemanager"] == "" || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		k.mu.Lock()
		s := k.scripts[pod.Namespace]
		k.mu.Unlock()
		if s == nil {
			s = complete
		}
		if pod.Labels["flexlvm.io/role"] == "mirror" { // a mirror never ends
			s = func(*corev1.Pod) *corev1.PodStatus { return running(corev1.ConditionTrue) }
		}
		if pod.Labels["flexlvm.io/role"] == "put" {
			k.mu.Lock()
			k.put[pod.Namespace+"/"+pod.Labels["batch.kubernetes.io/job-name"]] = true
			k.mu.Unlock()
		}
		if status := s(pod); status != nil {
			status.StartTime = ptr(metav1.Now())
			next := pod.DeepCopy()
			for _, c := range pod.Status.Conditions {
				if c.Type == corev1.PodScheduled {
					status.Conditions = append(status.Conditions, c)
				}
			}
			next.Status = *status
			_ = k.client.Status().Update(ctx, next)
		}
	}
}

// volumes deletes PersistentVolumes that were released.
func (k *kubelets) volumes(ctx context.Context) {
	list := &corev1.PersistentVolumeList{}
	if k.client.List(ctx, list) != nil {
		return
	}
	for i := range list.Items {
		v := &list.Items[i]
		if v.Status.Phase != corev1.VolumeReleased || v.Labels[pv.LabelNode] == "" {
			continue
		}
		_ = k.client.Delete(ctx, v)
		_ = k.client.Patch(ctx, v, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))
	}
}
