package dataset

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// If a quota refuses the pod of a loader, the status reports the quota's message.
func TestRefusedLoader(t *testing.T) {
	const quota = `pods "v-a-0-" is forbidden: exceeded quota: limits: must specify limits.cpu`
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas = 1 })
	r := s.loading(0, corev1.PodPending)
	r.Pod = nil
	asked := 0
	rec := &reconciler{Config: Config{Refused: func(context.Context, *batchv1.Job) string { asked++; return quota }}, podless: podLists{gap: maxPodlessGap}}
	r.Job.CreationTimestamp = metav1.NewTime(now.Add(time.Hour)) // the API server's clock is ahead
	for _, after := range []time.Duration{0, podlessDelay - time.Second} {
		s.Now = now.Add(after)
		rec.addRefusals(t.Context(), s.Observed)
		require.Zero(t, asked, "it has just been created")
	}
	s.Now = now.Add(podlessDelay)
	rec.addRefusals(t.Context(), s.Observed)
	require.Equal(t, "its loader's pod is refused: "+quota, s.requirePlan().Status.Nodes[0].Message)
	event := func(message string, at time.Time) corev1.Event {
		return corev1.Event{Message: message, LastTimestamp: metav1.NewTime(at)}
	}
	require.Equal(t, "b", lastRefusal([]corev1.Event{event("a", now), event("b", now.Add(time.Second)), event("c", now.Add(-time.Second))}).Message)
	require.Empty(t, lastRefusal(nil).Message)
}

// eventServer returns an API server that has these events of a Job, and the number of lists.
func eventServer(t *testing.T, events ...corev1.Event) (client.Reader, *int) {
	t.Helper()
	lists := 0
	return interceptor.NewClient(newRig(t).client, interceptor.Funcs{List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
		lists++
		options := (&client.ListOptions{}).ApplyOptions(o)
		require.Equal(t, int64(eventsPerPage), options.Limit)
		from := 0
		if options.Continue != "" {
			from, _ = strconv.Atoi(options.Continue)
		}
		to := min(from+eventsPerPage, len(events))
		out := list.(*corev1.EventList)
		if out.Items = slices.Clone(events[from:to]); to < len(events) {
			out.Continue = strconv.Itoa(to)
		}
		return nil
	}}), &lists
}

// The API server lists the oldest events first.
func TestLatestOfManyEvents(t *testing.T) {
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", UID: "u"}}
	var events []corev1.Event
	for i := range 5 {
		events = append(events, corev1.Event{Message: fmt.Sprint("cause ", i), LastTimestamp: metav1.NewTime(now.Add(time.Duration(i) * time.Minute))})
	}
	live, lists := eventServer(t, events...)
	require.Equal(t, "cause 4", refusalFromEvents(live)(t.Context(), job))
	require.Equal(t, 2, *lists)

	slices.Reverse(events)
	live, _ = eventServer(t, events...)
	require.Equal(t, "cause 4", refusalFromEvents(live)(t.Context(), job), "an event of the first page may have been seen last")
}

// A tenant can write any number of events about a Job, of up to 1.5 MiB each.
func TestFewEventsAreRead(t *testing.T) {
	live, lists := eventServer(t, slices.Repeat([]corev1.Event{{Message: "exceeded quota"}}, 1000)...)
	require.Equal(t, "exceeded quota", refusalFromEvents(live)(t.Context(), &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", UID: "u"}}))
	require.Equal(t, eventPages, *lists)
}

// A quota may refuse the loaders of all nodes: each pass reads the events of only the first maxInFull Jobs.
func TestRefusedLoadersOfManyNodes(t *testing.T) {
	const many = 200
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas = many })
	s.Fitting = fitting(many)
	for i := range many {
		r := s.loading(i, corev1.PodPending)
		r.Pod = nil
	}
	asked := 0
	rec := &reconciler{Config: Config{Refused: func(context.Context, *batchv1.Job) string { asked++; return "exceeded quota" }}, podless: podLists{gap: maxPodlessGap}}
	rec.addRefusals(t.Context(), s.Observed)
	s.Now = now.Add(podlessDelay)
	rec.addRefusals(t.Context(), s.Observed)
	require.Equal(t, maxInFull, asked)
	out := s.requirePlan()
	require.Equal(t, "its loader's pod is refused: exceeded quota", out.Status.Nodes[0].Message)
	require.Contains(t, out.Status.Message, "exceeded quota")
	require.Equal(t, "its loader's pod does not exist yet", out.Status.Nodes[maxInFull].Message)
}

func TestLoaderTemplate(t *testing.T) {
	s := newStage(t)
	q := resource.MustParse
	before := s.task(0, s.claimed(0).Claim).attempt
	s.Owner.Spec.Loader = &flexlvmv1.LoaderTemplate{
		Resources:         flexlvmv1.LoaderResources{Requests: corev1.ResourceList{"cpu": q("1")}, Limits: corev1.ResourceList{"cpu": q("2"), "memory": q("200Mi")}},
		Env:               []flexlvmv1.LoaderEnv{{Name: "HTTPS_PROXY", Value: "http://proxy:3128/$(x)"}},
		PriorityClassName: "batch", ImagePullSecrets: []corev1.LocalObjectReference{{Name: "registry"}},
	}
	task := s.task(0, s.claimed(0).Claim)
	require.NotEqual(t, before, task.attempt, "what failed is retried with it")
	for _, job := range []*batchv1.Job{task.load(), task.visit(false), task.upload(), task.mirror()} {
		pod := job.Spec.Template.Spec
		require.Equal(t, "batch", pod.PriorityClassName)
		require.Equal(t, "registry", pod.ImagePullSecrets[0].Name)
		c := pod.Containers[0]
		require.Equal(t, []corev1.EnvVar{{Name: "HTTPS_PROXY", Value: "http://proxy:3128/$$(x)"}}, c.Env)
		require.Equal(t, "1", c.Resources.Requests.Cpu().String())
		require.Equal(t, "200Mi", c.Resources.Requests.Memory().String(), "no more than the limit")
		require.Equal(t, "2", c.Resources.Limits.Cpu().String())
	}
}
