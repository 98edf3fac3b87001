package dataset

import (
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/replica"
)

func TestLoad(t *testing.T) {
	s := newStage(t)
	s.claimed(0)
	s.loading(1, corev1.PodPending)
	out := s.requirePlan("create job v-a-0")
	require.Equal(t, flexlvmv1.ReplicaWaiting, out.Status.Nodes[1].State)

	s.loading(0, corev1.PodRunning).Report = &protocol.Status{State: "fetching", FilesDone: 1, FilesTotal: 2, BytesDone: 10, BytesTotal: 40}
	out = s.requirePlan()
	require.Equal(t, flexlvmv1.ReplicaLoading, out.Status.Nodes[0].State)
	require.Equal(t, int32(25), out.Status.Nodes[0].Progress.Percent)
	require.Equal(t, int32(12), out.Status.Progress.Percent, "the other has not begun")
	s.recorded(out)
	s.loading(0, corev1.PodRunning).Report = nil
	require.Equal(t, out.Status, s.requirePlan().Status, "a loader that is slow to answer is as far as it was")

	// The loader ends, then the completion is recorded, and only then is the node labelled for pods.
	s.ended(0, batchv1.JobComplete, `{"state":"complete","filesDone":3,"filesTotal":3,"bytesDone":30,"bytesTotal":30}`)
	out = s.requirePlan("annotate claim v-a-0")
	require.Equal(t, "ReplicaComplete", out.Actions[0].Reason)
	require.Contains(t, out.Actions[0].Message, "3 files, 30 bytes")
	require.Zero(t, out.Status.ReadyReplicas)
	r := s.completed(0)
	s.Labelled = nil
	delete(r.Volume.Annotations, replica.AnnotationComplete)
	s.requirePlan("label node-0", "annotate volume pvc-0")
	s.completed(1)
	s.Labelled = []string{"node-0", "node-1"}
	r.Volume.Annotations[replica.AnnotationComplete] = replica.Complete
	out = s.requirePlan()
	require.Equal(t, flexlvmv1.MessageSuccess, out.Status.Message)
	require.EqualValues(t, 2, out.Loaded)
	require.Equal(t, flexlvmv1.Progress{Percent: 100, Files: 6, FilesTotal: 6, Bytes: 60, BytesTotal: 60}, *out.Status.Progress)
}

// recorded writes the status of an outcome, which the next plan reads.
func (s *stage) recorded(out Outcome) {
	s.Owner.Status.Volumes, s.Owner.Status.ObservedGeneration = []flexlvmv1.VolumeStatus{out.Status}, s.Owner.Generation
}

func TestFailedLoad(t *testing.T) {
	s := newStage(t)
	s.completed(1)
	r := s.ended(0, batchv1.JobFailed, `{"state":"failed","message":"access denied; look at the keys in Secret s"}`)
	// The status records the failure first. Then the Job and the claim are deleted.
	out := s.requirePlan()
	require.True(t, out.Failed)
	require.Equal(t, flexlvmv1.ReplicaFailed, out.Status.Nodes[0].State)
	require.Equal(t, "access denied; look at the keys in Secret s", out.Status.Nodes[0].Message)
	s.recorded(out)
	s.recorded(s.requirePlan("delete job v-a-0", "delete claim v-a-0"))
	r.Job, r.Pod = nil, nil // the controller is killed before the next action
	s.recorded(s.requirePlan("delete claim v-a-0"))
	r.Claim, r.Volume = nil, nil
	out = s.requirePlan()
	require.True(t, out.Failed)
	require.Contains(t, out.Status.Message, "access denied")
	s.recorded(out)

	// It is retried when AnnotationRetry or an input of the load changes.
	s.Owner.Annotations = map[string]string{AnnotationRetry: "1"}
	require.False(t, s.requirePlan("create claim v-a-0").Failed)
	s.Owner.Annotations = nil
	s.Source.Secret = "another"
	s.requirePlan("create claim v-a-0")
	// If the status is lost, the load is retried once more.
	s.Owner.Status.Volumes = nil
	s.requirePlan("create claim v-a-0")

	// Without a message of its loader, the reason of the Job is reported.
	s.ended(0, batchv1.JobFailed, "")
	require.Contains(t, s.requirePlan().Status.Nodes[0].Message, "Because")
}

// A loader that never ran, or that was interrupted, is not a failed load, whatever the status of its Job: it is
// retried without limit, nothing is deleted, and the replica's status reports the reason from the pod.
func TestLoaderThatNeverRan(t *testing.T) {
	rejected := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfcpu", Message: "Pod was rejected: Node didn't have enough resource: cpu"}}
	unstarted := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{
		Name: loader, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "StartError", ExitCode: 128, Message: "no such device"}},
	}}}}
	ended := func(code int32, reason string) *corev1.Pod {
		return &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{
			Name: loader, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: reason, ExitCode: code, StartedAt: metav1.NewTime(now.Add(-time.Second))}},
		}}}}
	}
	for name, c := range map[string]struct {
		pod *corev1.Pod
		why string
	}{
		"its node was restarted":  {ended(255, "Unknown"), "its loader was interrupted"},
		"kubelet has lost it":     {ended(137, "ContainerStatusUnknown"), "its loader was interrupted"},
		"its pod was taken away":  {nil, "its pods are gone"},
		"no kubelet took it":      {rejected, "OutOfcpu: Pod was rejected: Node didn't have enough resource: cpu"},
		"its program did not run": {unstarted, "StartError: no such device"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas, v.Options["timeoutForDataDownload"] = 1, "5m" })
			s.ended(0, batchv1.JobFailed, "").Pod = c.pod
			out := s.requirePlan()
			require.False(t, out.Failed)
			require.Contains(t, out.Status.Nodes[0].Message, c.why)
			s.recorded(out)
			s.Now = now.Add(time.Minute)
			require.False(t, s.requirePlan("delete job v-a-0").Failed)
		})
	}
	t.Run("to upload", func(t *testing.T) {
		s, _ := newUpload(t)
		s.UploadJob.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now)}}
		s.UploadPod = rejected
		out := s.requirePlan()
		require.False(t, out.Failed)
		require.Contains(t, out.Status.Message, "OutOfcpu")
		s.UploadPod = ended(255, "Unknown")
		out = s.requirePlan()
		require.False(t, out.Failed)
		require.Contains(t, out.Status.Message, "its loader was interrupted")
		s.Now = now.Add(time.Minute)
		s.requirePlan("delete job v-a-put")
	})
}

// timeoutForDataDownload counts from the start of the load's first loader.
func TestTimeoutOfALoad(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas, v.Options["timeoutForDataDownload"] = 1, "5m" })
	r := s.loading(0, corev1.PodPending)
	require.Nil(t, r.Job.Spec.ActiveDeadlineSeconds, "it would count the wait for a node")
	s.Now = now.Add(24 * time.Hour)
	require.False(t, s.requirePlan().Failed)
	running := func(since time.Time) *corev1.Pod {
		return &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
			Name: loader, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(since)}},
		}}}}
	}
	r.Pod = running(s.Now.Add(-time.Minute))
	require.False(t, s.requirePlan().Failed)
	r.Pods = []*corev1.Pod{running(s.Now.Add(-6 * time.Minute))}
	out := s.requirePlan()
	require.True(t, out.Failed)
	require.Contains(t, out.Status.Message, "timeoutForDataDownload 5m0s has expired since its loader began at 2026-11-22T15:54:00Z")
	s.recorded(out)
	s.requirePlan("delete job v-a-0", "delete claim v-a-0")
}

// A load's pod holds its result, and may be observed to end later than its Job. A pod that is never observed to
// end delays the result by half a minute.
func TestJobEndsWithItsPod(t *testing.T) {
	for _, end := range []batchv1.JobConditionType{batchv1.JobComplete, batchv1.JobFailed} {
		job := &batchv1.Job{Status: batchv1.JobStatus{Conditions: []batchv1.JobCondition{
			{Type: batchv1.JobSuspended, Status: corev1.ConditionFalse},
			{Type: end, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now)},
		}}}
		lags := func(after time.Duration, phases ...corev1.PodPhase) bool {
			var pods []*corev1.Pod
			for i, phase := range phases {
				pods = append(pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now.Add(time.Duration(i) * time.Second))}, Status: corev1.PodStatus{Phase: phase}})
			}
			seen, lags := asOfPods(job, pods, now.Add(after))
			require.Equal(t, lags, jobEndTime(seen).IsZero())
			return lags
		}
		failed := end == batchv1.JobFailed
		for phase, want := range map[corev1.PodPhase]bool{corev1.PodPending: true, corev1.PodRunning: true, corev1.PodSucceeded: false, corev1.PodFailed: !failed} {
			require.Equal(t, want, lags(time.Second, phase), "%s, %s", end, phase)
			require.False(t, lags(time.Minute, phase), "%s, %s, after a minute", end, phase)
		}
		require.True(t, lags(time.Second), "its pod is gone, or not seen yet")
		require.False(t, lags(time.Minute))
		require.False(t, lags(time.Second, corev1.PodFailed, corev1.PodSucceeded))
		require.Len(t, job.Status.Conditions, 2, "what was observed is not changed")
	}
}

// A loader that left no result is quoted from the end of its log.
func TestFailureWithoutResult(t *testing.T) {
	const progress = `{"state":"fetching","filesDone":1,"filesTotal":3}` + "\n"
	for name, c := range map[string]struct{ message, want string }{
		"a result":           {`{"state":"failed","message":"access denied"}`, "access denied"},
		"nothing":            {"", "the loader ended without a message (Error); see kubectl describe job, and the logs of its pods"},
		"progress alone":     {progress + progress, "the loader ended without a message (Error); see kubectl describe job, and the logs of its pods"},
		"one line of it":     {progress, "the loader ended without a message (Error); see kubectl describe job, and the logs of its pods"},
		"a line that is cut": {`sDone":1}` + "\n" + progress + "fetch: unknown flag: --new\n", "the loader ended without a result (Error); see the logs of its pods, which end with: fetch: unknown flag: --new"},
		"two lines":          {progress + "level=warning msg=a\n\nfetch: b\n", "the loader ended without a result (Error); see the logs of its pods, which end with: level=warning msg=a; fetch: b"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
				Name: loader, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Error", Message: c.message}},
			}}}}
			require.Equal(t, c.want, failure(pod, ""))
		})
	}
	long := lastWords(strings.Repeat("ü", maxMessage) + "!")
	require.LessOrEqual(t, len(long), maxMessage+len("… "))
	require.True(t, utf8.ValidString(long))
	require.True(t, strings.HasPrefix(long, "… ü") && strings.HasSuffix(long, "ü!"))
}

// The exit codes of a loader that failed or could load only a part of the source end the Job: see
// failurePolicy.
func TestFailurePolicy(t *testing.T) {
	rules := failurePolicy().Rules
	require.Equal(t, batchv1.PodFailurePolicyActionIgnore, rules[0].Action, "a pod that was sent away")
	require.Equal(t, batchv1.PodFailurePolicyActionFailJob, rules[1].Action)
	require.Equal(t, batchv1.PodFailurePolicyOnExitCodesOpIn, rules[1].OnExitCodes.Operator)
	require.Equal(t, []int32{1, 2, 3, 124}, rules[1].OnExitCodes.Values, "and not 255, which a restart of its node gives, or 137")
}

func TestTriedAgain(t *testing.T) {
	s := newStage(t)
	r := s.loading(0, corev1.PodFailed)
	r.Pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: loader, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: `{"message":"the server is away"}`}}}}
	s.completed(1)
	out := s.requirePlan()
	require.False(t, out.Failed)
	require.Contains(t, out.Status.Nodes[0].Message, "the server is away")
}

// Whatever is lost is created again, from the observed state alone.
func TestHeal(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*stage)
		want   []string
	}{
		"its Job was deleted while it loaded": {func(s *stage) { s.loading(0, corev1.PodRunning).Job = nil }, []string{"create job v-a-0"}},
		"its Job was deleted, and its pod still writes": {func(s *stage) {
			r := s.loading(0, corev1.PodRunning)
			r.Job, r.Pod, r.Busy = nil, nil, true
		}, nil},
		"its Job was deleted afterwards": {func(s *stage) { s.completed(0).Job = nil }, nil},
		"its claim was deleted": {func(s *stage) {
			r := s.completed(0)
			s.Labelled = nil
			r.Claim, r.Volume, r.Node = nil, nil, ""
		}, []string{"delete job v-a-0"}},
		"its claim is going": {func(s *stage) {
			s.completed(0).Claim.DeletionTimestamp = &metav1.Time{Time: now}
		}, []string{"unlabel node-0", "delete job v-a-0"}},
		"its claim is another's of that name": {func(s *stage) { s.loading(0, corev1.PodRunning).Claim.UID = "newer" }, []string{"delete job v-a-0"}},
		"its PersistentVolume is gone": {func(s *stage) {
			r := s.completed(0)
			r.Claim.Status.Phase, r.Volume, r.Node = corev1.ClaimLost, nil, ""
		}, []string{"unlabel node-0", "delete job v-a-0", "delete claim v-a-0"}},
		"its label was taken off": {func(s *stage) {
			s.completed(0)
			s.Labelled = nil
		}, []string{"label node-0"}},
		"a node carries a label that it has not earned": {func(s *stage) {
			s.completed(0)
			s.Labelled = append(s.Labelled, "other")
		}, []string{"unlabel other"}},
		"the consumers' claim was deleted": {func(s *stage) {
			s.completed(0)
			s.Readers.Claim = nil
		}, []string{"create claim v-a"}},
		"the consumers' claim was deleted before": {func(s *stage) {
			s.completed(0)
			s.Readers.Claim, s.Readers.Volume.Status.Phase = nil, corev1.VolumeReleased
		}, []string{"delete volume flexlvm-ds-HASH"}},
		"the consumers' claim is going": {func(s *stage) {
			s.completed(0)
			s.Readers.Claim.DeletionTimestamp = &metav1.Time{Time: now}
		}, nil},
		"the consumers' volume is gone": {func(s *stage) {
			s.completed(0)
			s.Readers.Volume, s.Readers.Claim.Status.Phase = nil, corev1.ClaimLost
		}, []string{"delete claim v-a"}},
		"its node is gone from the API, for now": {func(s *stage) {
			r := s.completed(0)
			r.Node, s.Labelled = "", nil
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas = 1 })
			c.change(s)
			var want []string
			for _, w := range c.want {
				want = append(want, strings.ReplaceAll(w, "HASH", s.hash()))
			}
			s.requirePlan(want...)
		})
	}
}

func TestTooFewNodes(t *testing.T) {
	s := newStage(t)
	s.Fitting = fitting(1)
	out := s.requirePlan("create claim v-a-0", "create claim v-a-1")
	require.True(t, out.Failed)
	require.Equal(t, "replicas [2] greater than number of nodes [1]", out.Status.Message)
	// A new node resolves this.
	s.Fitting = fitting(2)
	require.False(t, s.requirePlan("create claim v-a-0", "create claim v-a-1").Failed)
}

// A node that does not match for a while still counts as the node of its loading replica.
func TestTooFewNodesCountsThoseThatAreKept(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.NodeAffinity = requiredAffinity(labelExists("gpu")) })
	s.loading(0, corev1.PodRunning)
	s.loading(1, corev1.PodRunning)
	s.Fitting, s.NotMatching = nil, map[string]bool{"node-0": true, "node-1": true}
	words, out := s.plan()
	require.Equal(t, []string{"annotate claim v-a-0", "annotate claim v-a-1"}, words)
	require.False(t, out.Failed)
	require.NotContains(t, out.Status.Message, "greater than number of nodes")
	// A node that an edit excludes does not count.
	s.Config.NodeAffinity = requiredAffinity(labelExists("fast"))
	_, out = s.plan()
	require.Contains(t, out.Status.Message, "replicas [2] greater than number of nodes [0]")
}

// A cluster autoscaler adds nodes only for waiting pods: maxAhead loaders are created although no node fits,
// and the status quotes what their pods wait for.
func TestLoadersWaitForNodesThatAreNotThere(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas, v.Options["timeoutForDataDownload"] = 40, "5m" })
	s.Fitting = fitting(0)
	words, out := s.plan()
	require.Len(t, words, maxAhead)
	require.Equal(t, "its claim is being created", out.Status.Nodes[maxAhead-1].Message)
	require.Contains(t, out.Status.Nodes[maxAhead].Message, "no node is free for it")
	for i := range maxAhead {
		s.claimed(i).Claim.Status.Phase = corev1.ClaimPending
		s.Replicas[i].Volume, s.Replicas[i].Node = nil, ""
	}
	words, _ = s.plan()
	require.Contains(t, words, "create job v-a-9")
	r := s.loading(0, corev1.PodPending)
	r.Pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."}}
	s.Now = now.Add(48 * time.Hour)
	_, out = s.plan()
	require.Equal(t, flexlvmv1.ReplicaWaiting, out.Status.Nodes[0].State)
	require.Equal(t, "its loader cannot be scheduled: 0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.", out.Status.Nodes[0].Message)
	// Each new node lets one more loader wait.
	s.Fitting = fitting(1)
	words, _ = s.plan()
	require.Contains(t, words, "create claim v-a-10")
	require.NotContains(t, words, "create claim v-a-11")
}

// Two datasets of the same source have no names in common.
func TestTwoOfTheSameSource(t *testing.T) {
	a, b := newStage(t), newStage(t)
	b.Owner.UID, b.Owner.Name = "other", "w"
	require.NotEqual(t, a.hash(), b.hash())
	words, _ := a.plan()
	others, _ := b.plan()
	for _, w := range words {
		require.False(t, slices.Contains(others, w), w)
	}
}

// A loader starts only when its volume has grown or can grow: otherwise it would fail for lack of room.
func TestLargerWhileItIsLoaded(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas = 1 })
	r := s.loading(0, corev1.PodRunning)
	s.Source.Capacity = resource.MustParse("2Gi")
	s.requirePlan("grow claim v-a-0", "delete job v-a-0")
	r.Job = nil
	out := s.requirePlan("grow claim v-a-0")
	require.Equal(t, "its volume grows first", out.Status.Nodes[0].Message)
	r.Claim.Spec.Resources = storageRequest(s.Source.Capacity)
	require.Equal(t, "its volume grows first", s.requirePlan().Status.Nodes[0].Message)
	for outcome, starts := range map[ledger.Outcome]bool{ledger.MakingRoom: false, ledger.Granted: false, ledger.Waiting: true, ledger.Refused: true} {
		r.Claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{
			Type: corev1.PersistentVolumeClaimControllerResizeError, Status: corev1.ConditionTrue, Reason: string(outcome)}}
		if starts {
			s.requirePlan("create job v-a-0") // the data may fit
		} else {
			s.requirePlan()
		}
	}
	r.Claim.Status.Conditions = nil
	r.Volume.Spec.Capacity[corev1.ResourceStorage] = s.Source.Capacity
	require.Equal(t, "its volume grows first", s.requirePlan().Status.Nodes[0].Message, "kubelet would mount it as it is")
	r.Claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue}}
	s.requirePlan("create job v-a-0") // kubelet grows it before the loader starts
	r.Claim.Status.Conditions, r.Claim.Status.Capacity = nil, r.Volume.Spec.Capacity
	s.requirePlan("create job v-a-0")
}
