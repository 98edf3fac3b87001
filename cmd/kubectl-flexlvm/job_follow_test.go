package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func putWorker(t *testing.T, kube *fake.Clientset, name, worker string, phase corev1.PodPhase, restarts int32, state corev1.ContainerState) {
	_ = kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "team", name)
	require.NoError(t, kube.Tracker().Add(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "team", Name: name, UID: types.UID(name), Labels: map[string]string{batchv1.JobNameLabel: "count"},
			Annotations: map[string]string{batchv1.JobCompletionIndexAnnotation: worker}, CreationTimestamp: metav1.Now(),
		},
		Spec:   corev1.PodSpec{Containers: []corev1.Container{{Name: "worker"}}},
		Status: corev1.PodStatus{Phase: phase, ContainerStatuses: []corev1.ContainerStatus{{Name: "worker", RestartCount: restarts, State: state}}},
	}))
}

func complete(t *testing.T, kube *fake.Clientset, job *batchv1.Job) {
	job = job.DeepCopy()
	job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	_, err := kube.BatchV1().Jobs("team").Update(t.Context(), job, metav1.UpdateOptions{})
	require.NoError(t, err)
}

// requests returns the recorded requests of a verb for a resource, without subresources.
func requests(kube *fake.Clientset, verb, resource string) (out []clienttesting.Action) {
	for _, a := range kube.Actions() {
		if a.Matches(verb, resource) && a.GetSubresource() == "" {
			out = append(out, a)
		}
	}
	return out
}

// logOf returns a log. Each line begins with the second of its timestamp.
func logOf(lines ...string) *runtime.Unknown {
	var out bytes.Buffer
	for _, line := range lines {
		second, text, _ := strings.Cut(line, " ")
		fmt.Fprintf(&out, "2026-11-28T12:00:0%sZ %s\n", second, text)
	}
	return &runtime.Unknown{Raw: out.Bytes()}
}

// follow waits for workers that have not started, continues with pods that replace others, and prints
// each container once, until the job or the selected worker has ended.
func TestFollow(t *testing.T) {
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	done := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}
	for _, tt := range []struct {
		worker int
		prints map[string]int
		takes  time.Duration
	}{
		{-1, map[string]int{"[0] fake logs\n": 3, "[1] fake logs\n": 1}, 7 * time.Second},
		{1, map[string]int{"[1] fake logs\n": 1}, 6 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			kube, job := fake.NewClientset(), settings("count").Job()
			_, err := kube.BatchV1().Jobs("team").Create(t.Context(), job, metav1.CreateOptions{})
			require.NoError(t, err)
			kube.PrependReactor("get", "pods/log", func(clienttesting.Action) (bool, runtime.Object, error) { return true, logOf("1 fake logs"), nil })
			pod := func(name, worker string, phase corev1.PodPhase, restarts int32, state corev1.ContainerState) {
				putWorker(t, kube, name, worker, phase, restarts, state)
			}
			go func() {
				time.Sleep(time.Second + time.Second/2)
				pod("a", "0", corev1.PodPending, 0, waiting)
				time.Sleep(time.Second)
				pod("a", "0", corev1.PodRunning, 0, running)
				pod("b", "1", corev1.PodPending, 0, corev1.ContainerState{})
				time.Sleep(time.Second)
				pod("a", "0", corev1.PodRunning, 1, running)
				time.Sleep(time.Second)
				pod("c", "0", corev1.PodRunning, 0, running) // it replaces a
				time.Sleep(time.Second)
				pod("b", "1", corev1.PodSucceeded, 0, done)
				time.Sleep(time.Second)
				complete(t, kube, job)
			}()
			var out bytes.Buffer
			began := time.Now()
			require.NoError(t, (&logOptions{worker: tt.worker, follow: true, tail: -1}).show(t.Context(), kube, "team", "count", &printer{out: &out}))
			require.Equal(t, tt.takes, time.Since(began))
			lines := 0
			for line, n := range tt.prints {
				require.Equal(t, n, strings.Count(out.String(), line), "%s in %s", line, out.String())
				lines += n
			}
			require.Equal(t, lines, strings.Count(out.String(), "\n"))
			require.Empty(t, requests(kube, "get", "pods"), "what each second lists says how they are")
			require.Len(t, requests(kube, "list", "pods"), int(tt.takes/time.Second)+1)
			time.Sleep(10 * time.Second)
		})
	}
}

// A log stream that ends while its container runs is resumed where it ended, and read to its end after
// the container has ended.
func TestFollowOfALogThatIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube, job := fake.NewClientset(), settings("count").Job()
		_, err := kube.BatchV1().Jobs("team").Create(t.Context(), job, metav1.CreateOptions{})
		require.NoError(t, err)
		putWorker(t, kube, "a", "0", corev1.PodRunning, 0, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
		var asked []*corev1.PodLogOptions
		kube.PrependReactor("get", "pods/log", func(action clienttesting.Action) (bool, runtime.Object, error) {
			asked = append(asked, action.(clienttesting.GenericAction).GetValue().(*corev1.PodLogOptions))
			switch len(asked) {
			case 1: // the stream was idle, and a proxy closed it
				return true, logOf("1 one", "2.1 two", "2.1 three"), nil
			case 2: // kubelet is restarted
				return true, nil, apierrors.NewNotFound(corev1.Resource("pods/log"), "a")
			case 3: // the API server is restarted
				return true, nil, errors.New("connection reset")
			case 4:
				putWorker(t, kube, "a", "0", corev1.PodSucceeded, 0, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}})
				return true, logOf("2.05 before", "2.1 two", "2.1 three", "2.1 four", "3 five", "2.9 six", "4 seven"), nil
			}
			return true, logOf("4 seven", "5 last"), nil
		})
		go func() {
			time.Sleep(time.Minute)
			complete(t, kube, job)
		}()
		var out, notes bytes.Buffer
		o := logOptions{worker: -1, follow: true, tail: 3}
		require.NoError(t, o.show(t.Context(), kube, "team", "count", &printer{out: &out, notes: &notes}))
		require.Equal(t, "[0] one\n[0] two\n[0] three\n[0] four\n[0] five\n[0] six\n[0] seven\n[0] last\n", out.String())
		require.Contains(t, notes.String(), "read the log of worker 0 (pod a): ")
		require.Contains(t, notes.String(), `pods/log "a" not found; retrying`)
		require.Contains(t, notes.String(), "connection reset; retrying\n")
		require.Equal(t, 2, strings.Count(notes.String(), "\n"), notes.String())
		require.Len(t, asked, 5)
		require.EqualValues(t, 3, *asked[0].TailLines)
		require.Nil(t, asked[0].SinceTime)
		require.Nil(t, asked[1].TailLines, "what came meanwhile may be more")
		require.Equal(t, "2026-11-28T12:00:02.1Z", asked[1].SinceTime.Format(time.RFC3339Nano))
		require.True(t, asked[3].Follow)
		require.False(t, asked[4].Follow)
	})
}

// A log request that the API server refuses twice in a row is not repeated. After one refusal it is, because client-go
// renews refused credentials.
func TestFollowOfALogThatIsRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		refused map[int]bool // by the number of the request
		asked   int
		ends    string // the error
	}{
		"for good":                {map[int]bool{1: true, 2: true}, 2, "no right"},
		"twice, but not in a row": {map[int]bool{1: true, 3: true}, 5, ""},
	} {
		t.Run(name, func(t *testing.T) { followRefusedLog(t, tt.refused, tt.asked, tt.ends) })
	}
}

func followRefusedLog(t *testing.T, refused map[int]bool, want int, ends string) {
	synctest.Test(t, func(t *testing.T) {
		kube, job := fake.NewClientset(), settings("count").Job()
		_, err := kube.BatchV1().Jobs("team").Create(t.Context(), job, metav1.CreateOptions{})
		require.NoError(t, err)
		putWorker(t, kube, "a", "0", corev1.PodRunning, 0, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
		asked := 0
		kube.PrependReactor("get", "pods/log", func(clienttesting.Action) (bool, runtime.Object, error) {
			asked++
			switch {
			case refused[asked]:
				return true, nil, apierrors.NewForbidden(corev1.Resource("pods/log"), "a", errors.New("no right"))
			case asked > len(refused)+1:
				putWorker(t, kube, "a", "0", corev1.PodSucceeded, 0, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}})
			}
			return true, logOf("1 one"), nil
		})
		go func() {
			time.Sleep(time.Minute)
			complete(t, kube, job)
		}()
		var out bytes.Buffer
		o := logOptions{worker: -1, follow: true, tail: -1}
		err = o.show(t.Context(), kube, "team", "count", &printer{out: &out, notes: io.Discard})
		if ends == "" {
			require.NoError(t, err)
			require.Equal(t, "[0] one\n", out.String())
		} else {
			require.ErrorContains(t, err, ends)
		}
		require.Equal(t, want, asked)
	})
}

// The first read of the job succeeds. If two later reads in a row are refused, no more workers are followed. Other
// errors are retried, with one note for each outage.
func TestFollowWhereTheJobCannotBeRead(t *testing.T) {
	refused := apierrors.NewUnauthorized("Unauthorized")
	gone := errors.New("connection refused")
	for name, tt := range map[string]struct {
		verb, resource string
		fails          func(at int) error
		ends           string // the error
		notes          []string
		takes          time.Duration
	}{
		"the user's token has expired": {
			"get", "jobs", func(at int) error { return map[bool]error{true: refused}[at > 1] }, "get job team/count: Unauthorized; log in again",
			[]string{
				"get job team/count: Unauthorized; log in again: the API server does not know the kubeconfig's user, or its token has expired; retrying",
				"get job team/count: Unauthorized; log in again: the API server does not know the kubeconfig's user, or its token has expired; workers that start from now on are not followed, and the open logs are followed to their ends",
			},
			2 * time.Second,
		},
		"pods may not be listed any more": {
			"list", "pods", func(at int) error {
				return map[bool]error{true: apierrors.NewForbidden(corev1.Resource("pods"), "", gone)}[at > 1]
			}, "docs/kubectl-plugin.md lists the permissions",
			[]string{"docs/kubectl-plugin.md lists the permissions that each command needs; retrying", "docs/kubectl-plugin.md lists the permissions that each command needs; workers that start from now on are not followed"},
			2 * time.Second,
		},
		"the credentials are renewed": {
			"get", "jobs", func(at int) error { return map[bool]error{true: refused}[at == 2 || at == 4] }, "",
			[]string{"; retrying", "; retrying"},
			time.Minute,
		},
		"the API server is away twice": {
			"get", "jobs", func(at int) error { return map[bool]error{true: gone}[at > 1 && at < 9 || at == 11] }, "",
			[]string{"get job team/count: connection refused; retrying", "get job team/count: connection refused; retrying"},
			time.Minute,
		},
		"the API server has much to do": {
			"list", "pods", func(at int) error {
				return map[bool]error{true: apierrors.NewTooManyRequests("slow down", 1)}[at > 1 && at < 9]
			}, "",
			[]string{"list the pods of job team/count: slow down; retrying"},
			time.Minute,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				kube, job := fake.NewClientset(), settings("count").Job()
				_, err := kube.BatchV1().Jobs("team").Create(t.Context(), job, metav1.CreateOptions{})
				require.NoError(t, err)
				putWorker(t, kube, "a", "0", corev1.PodRunning, 0, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
				kube.PrependReactor("get", "pods/log", func(clienttesting.Action) (bool, runtime.Object, error) { return true, logOf("1 one"), nil })
				looks := 0
				kube.PrependReactor(tt.verb, tt.resource, func(a clienttesting.Action) (bool, runtime.Object, error) {
					if a.GetSubresource() != "" {
						return false, nil, nil
					}
					looks++
					err := tt.fails(looks)
					return err != nil, nil, err
				})
				go func() {
					time.Sleep(time.Minute - time.Second/2)
					complete(t, kube, job)
				}()
				var out, notes bytes.Buffer
				began := time.Now()
				err = (&logOptions{worker: -1, follow: true, tail: -1}).show(t.Context(), kube, "team", "count", &printer{out: &out, notes: &notes})
				if tt.ends == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, tt.ends)
				}
				require.Equal(t, tt.takes, time.Since(began))
				require.Equal(t, "[0] one\n", out.String())
				said := strings.Split(strings.TrimSuffix(notes.String(), "\n"), "\n")
				require.Len(t, said, len(tt.notes))
				for i, note := range tt.notes {
					require.Contains(t, said[i], note)
				}
				time.Sleep(time.Hour)
			})
		})
	}
}

// A line that may be incomplete is printed again.
func TestLineThatIsCut(t *testing.T) {
	var out bytes.Buffer
	p, at := printer{out: &out}, logPosition{}
	cut := io.MultiReader(bytes.NewReader(logOf("1 one").Raw), strings.NewReader("2026-11-28T12:00:02Z tw"), iotest.ErrReader(io.ErrUnexpectedEOF))
	require.Error(t, p.lines(cut, 0, &at))
	at.resume()
	require.NoError(t, p.lines(bytes.NewReader(logOf("1 one", "2 two").Raw), 0, &at))
	require.Equal(t, "[0] one\n[0] tw\n[0] two\n", out.String())
}

func TestFollowOfNothing(t *testing.T) {
	kube, job := fake.NewClientset(), settings("count").Job()
	show := func(worker int) error {
		return (&logOptions{worker: worker, follow: true, tail: -1}).show(t.Context(), kube, "team", "count", &printer{out: &bytes.Buffer{}})
	}
	require.ErrorContains(t, show(-1), "get job team/count")
	job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue}}
	_, err := kube.BatchV1().Jobs("team").Create(t.Context(), job, metav1.CreateOptions{})
	require.NoError(t, err)
	require.ErrorContains(t, show(2), "--worker 2: job team/count has 2 workers, numbered from 0")
	require.ErrorContains(t, show(-1), "job team/count has no pods of the requested workers")

	// A non-indexed job's pods have no numbers.
	plain := batchv1.NonIndexedCompletion
	job.Spec.CompletionMode = &plain
	_, err = kube.BatchV1().Jobs("team").Update(t.Context(), job, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.ErrorContains(t, show(-1), "job team/count is not Indexed (spec.completionMode), so its pods have no worker numbers; use kubectl logs -n team -f job/count")
}

// A progress bar that is redrawn with carriage returns is one line of any length.
func TestLongLines(t *testing.T) {
	var out bytes.Buffer
	p := printer{out: &out}
	long := strings.Repeat("50 %\r", 1<<20)
	require.NoError(t, p.lines(strings.NewReader("begin\r\n"+long+"\nend"), 3, nil))
	text := out.String()
	require.True(t, strings.HasPrefix(text, "[3] begin\n[3] 50 %\r"))
	require.True(t, strings.HasSuffix(text, "\n[3] end\n"))
	require.Equal(t, "begin"+strings.TrimSuffix(long, "\r")+"end", strings.TrimSuffix(strings.ReplaceAll(strings.ReplaceAll(text, "[3] ", ""), "\n", ""), "\r"))
}
