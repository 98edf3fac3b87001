package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/flexlvm/flexlvm/internal/recipe"
)

// followEvery is how often to look for workers that have started.
const followEvery = time.Second

// A follower prints the logs of workers as they come, of each container once.
type follower struct {
	*logOptions
	kube            kubernetes.Interface
	namespace, name string
	printer         *printer

	began   bool            // the job was there
	seen    map[string]bool // containers
	streams sync.WaitGroup
	failed  chan error // of a stream; the first is enough
}

// goOn prints the logs of the workers until the job has ended, or the one worker that is asked for.
func (o *logOptions) goOn(ctx context.Context, kube kubernetes.Interface, namespace, name string, p *printer) error {
	f := follower{logOptions: o, kube: kube, namespace: namespace, name: name, printer: p, seen: map[string]bool{}, failed: make(chan error, 1)}
	err := wait.PollUntilContextCancel(ctx, followEvery, true, f.look)
	f.streams.Wait()
	close(f.failed)
	switch {
	case err != nil:
		return err
	case len(f.seen) == 0:
		return noPods(namespace, name)
	}
	return <-f.failed
}

// look begins to print the logs of containers that have started, and reports whether there will be no others. The
// job is read first: of one that has ended, all that have started are in what is read then.
func (f *follower) look(ctx context.Context) (ended bool, err error) {
	job, err := f.kube.BatchV1().Jobs(f.namespace).Get(ctx, f.name, metav1.GetOptions{})
	switch {
	case f.began && apierrors.IsNotFound(err):
		return true, nil
	case f.began && err != nil:
		return false, nil // the API server may be away for a moment
	case err != nil:
		return false, advised(fmt.Errorf("look at job %s/%s: %w", f.namespace, f.name, err))
	case job.Spec.Completions != nil && f.worker >= int(*job.Spec.Completions):
		return false, fmt.Errorf("--worker %d: job %s/%s has %d, the first of which is 0", f.worker, f.namespace, f.name, *job.Spec.Completions)
	}
	last, err := f.pods(ctx, f.kube, f.namespace, f.name)
	if err != nil {
		if f.began {
			return false, nil // likewise
		}
		return false, err
	}
	f.began = true
	for _, worker := range slices.Sorted(maps.Keys(last)) {
		f.begin(ctx, last[worker], worker)
	}
	one := last[f.worker]
	return hasEnded(job) || one != nil && one.Status.Phase == corev1.PodSucceeded, nil
}

func hasEnded(job *batchv1.Job) bool {
	_, is := recipe.Ended(job)
	return is
}

// begin prints the log of a worker's container if that has started, and is not printed already.
func (f *follower) begin(ctx context.Context, pod *corev1.Pod, worker int) {
	i := slices.IndexFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == pod.Spec.Containers[0].Name })
	if i < 0 {
		return
	}
	container := &pod.Status.ContainerStatuses[i]
	id := fmt.Sprint(pod.UID, "/", container.RestartCount)
	if container.State.Waiting != nil || container.State.Running == nil && container.State.Terminated == nil || f.seen[id] {
		return
	}
	f.seen[id] = true
	f.streams.Go(func() {
		err := f.stream(ctx, f.kube, pod, worker, f.printer)
		if err == nil || apierrors.IsNotFound(err) { // the pod is gone, and another takes its place
			return
		}
		select {
		case f.failed <- err:
		default:
		}
	})
}
