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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/flexlvm/flexlvm/internal/recipe"
)

const (
	// followEvery is the interval at which to check for workers that have started.
	followEvery = time.Second
	// resumeAfter is how long after the end of a stream to check whether its container still runs: the pod's
	// status reports the end of a container some seconds late.
	resumeAfter = 5 * time.Second
)

// A follower prints the logs of workers as lines arrive, and those of each container once.
type follower struct {
	*logOptions
	kube            kubernetes.Interface
	namespace, name string
	printer         *printer

	retries                 // of poll
	seen    map[string]bool // containers whose logs are or were printed
	streams sync.WaitGroup
	failed  chan error    // the first error of a log that could not be read to its end
	done    chan struct{} // closed when no more containers will start

	mu   sync.Mutex
	pods map[types.UID]*corev1.Pod // from the last call of poll that succeeded
}

// followJob prints the logs of the workers until the job has ended, or with --worker until that worker has.
func (o *logOptions) followJob(ctx context.Context, kube kubernetes.Interface, namespace, name string, p *printer) error {
	f := follower{logOptions: o, kube: kube, namespace: namespace, name: name, printer: p, retries: retries{note: p.note}, seen: map[string]bool{}, failed: make(chan error, 1), done: make(chan struct{})}
	err := wait.PollUntilContextCancel(ctx, followEvery, true, f.poll)
	close(f.done)
	if err != nil && f.began && ctx.Err() == nil {
		p.note(err.Error() + "; workers that start from now on are not followed, and the open logs are followed to their ends")
	}
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

// poll starts to print the logs of containers that have started, and reports whether no others will start. It
// reads the job before the pods, so that for a job that has ended, the pods include all that ever started.
func (f *follower) poll(ctx context.Context) (ended bool, err error) {
	job, err := f.kube.BatchV1().Jobs(f.namespace).Get(ctx, f.name, metav1.GetOptions{})
	switch {
	case f.began && apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, f.permanentError(ctx, withAdvice(fmt.Errorf("get job %s/%s: %w", f.namespace, f.name, err)))
	}
	if err := f.checkWorkers(job); err != nil {
		return false, err
	}
	pods, err := podsOf(ctx, f.kube, f.namespace, f.name)
	if err != nil {
		return false, f.permanentError(ctx, err)
	}
	f.succeeded()
	f.remember(pods)
	last := f.last(pods)
	for _, worker := range slices.Sorted(maps.Keys(last)) {
		f.begin(ctx, last[worker], worker)
	}
	one := last[f.worker]
	return hasEnded(job) || one != nil && one.Status.Phase == corev1.PodSucceeded, nil
}

// checkWorkers returns an error if the job has no such workers.
func (f *follower) checkWorkers(job *batchv1.Job) error {
	if mode := job.Spec.CompletionMode; mode == nil || *mode != batchv1.IndexedCompletion {
		return fmt.Errorf("job %[1]s/%[2]s is not Indexed (spec.completionMode), so its pods have no worker numbers; use kubectl logs -n %[1]s -f job/%[2]s", f.namespace, f.name)
	}
	if job.Spec.Completions != nil && f.worker >= int(*job.Spec.Completions) {
		return fmt.Errorf("--worker %d: job %s/%s has %d workers, numbered from 0", f.worker, f.namespace, f.name, *job.Spec.Completions)
	}
	return nil
}

// remember stores the pods that poll found, for streams that end.
func (f *follower) remember(pods []corev1.Pod) {
	found := make(map[types.UID]*corev1.Pod, len(pods))
	for i := range pods {
		found[pods[i].UID] = &pods[i]
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pods = found
}

func hasEnded(job *batchv1.Job) bool {
	_, is := recipe.Ended(job)
	return is
}

// begin starts to print the log of a worker's container if the container has started and its log is not printed
// yet.
func (f *follower) begin(ctx context.Context, pod *corev1.Pod, worker int) {
	container := containerOf(pod)
	id := fmt.Sprint(pod.UID, "/", container.RestartCount)
	if container.State.Waiting != nil || container.State.Running == nil && container.State.Terminated == nil || f.seen[id] {
		return
	}
	f.seen[id] = true
	f.streams.Go(func() {
		err := f.read(ctx, pod, worker)
		if err == nil || apierrors.IsNotFound(err) { // the pod was deleted and is replaced
			return
		}
		select {
		case f.failed <- err:
		default:
		}
	})
}

// containerOf returns the status of the worker's container, which is empty at first.
func containerOf(pod *corev1.Pod) corev1.ContainerStatus {
	for _, s := range pod.Status.ContainerStatuses {
		if s.Name == pod.Spec.Containers[0].Name {
			return s
		}
	}
	return corev1.ContainerStatus{}
}

// read prints the log of a container to its end. A stream ends when its container does, but also when the API
// server or kubelet restarts, or when something in between closes idle connections. So read opens another
// stream while the container runs, and once more afterwards.
func (f *follower) read(ctx context.Context, pod *corev1.Pod, worker int) error {
	var at logPosition
	lastError, refused := "", false
	for ended, there := containerOf(pod).State.Running == nil, true; there; ended, there = f.await(ctx, pod) {
		options := f.options()
		if options.Follow, options.Timestamps = !ended, true; !at.time.IsZero() {
			options.TailLines, options.SinceTime = nil, &metav1.Time{Time: at.time}
		}
		at.resume()
		err := f.printer.stream(ctx, f.kube, pod, worker, options, &at)
		again := refused
		refused = isRefused(err)
		if err == nil && ended || again && refused || f.isOver() || ctx.Err() != nil {
			return err
		}
		if err != nil && err.Error() != lastError {
			lastError = err.Error()
			f.printer.note(lastError + "; retrying")
		}
	}
	return nil
}

// isOver reports whether the job, or the requested worker, has ended.
func (f *follower) isOver() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// await waits until the log of a container can be read again. ended reports whether the container has ended,
// which is assumed once the job has. there reports whether the container still exists and was not restarted.
func (f *follower) await(ctx context.Context, pod *corev1.Pod) (ended, there bool) {
	timer := time.NewTimer(resumeAfter)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false, false
	case <-f.done:
	case <-timer.C:
	}
	f.mu.Lock()
	now := f.pods[pod.UID]
	f.mu.Unlock()
	if now == nil || !sameContainer(now, pod) {
		return false, false
	}
	return f.isOver() || containerOf(now).State.Running == nil, true
}

func sameContainer(a, b *corev1.Pod) bool {
	return a.UID == b.UID && containerOf(a).RestartCount == containerOf(b).RestartCount
}
