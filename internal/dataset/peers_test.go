package dataset

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/replica"
)

const indexed = `{"state":"complete","filesDone":3,"filesTotal":3,"bytesDone":30,"bytesTotal":30,"index":"sha256:a"}`

// newRack returns a stage whose replicas are copied from each other.
func newRack(t *testing.T, replicas int, options ...string) *stage {
	t.Helper()
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) {
		v.Replicas = flexlvmv1.ReplicaCount(replicas)
		v.Options["peersSecretName"] = "peers"
		for i := 0; i < len(options); i += 2 {
			v.Options[options[i]] = flexlvmv1.OptionValue(options[i+1])
		}
	})
	s.Fitting = fitting(replicas)
	return s
}

// indexed adds a complete replica that can be copied.
func (s *stage) indexed(index int) *Replica {
	r := s.completed(index)
	r.Claim.Annotations[annotationLoaded] = indexed
	return r
}

// peerServer adds a complete replica that serves to others.
func (s *stage) peerServer(index int) *Replica {
	r := s.indexed(index)
	r.Job = s.task(index, r.Claim).peerServerJob()
	r.Job.CreationTimestamp = metav1.NewTime(now)
	r.Pod = &corev1.Pod{Status: corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: fmt.Sprintf("10.0.0.%d", index), Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}}
	return r
}

// copying adds a replica that is being copied from others.
func (s *stage) copying(index int, from ...int) *Replica {
	r := s.claimed(index)
	what := copying{digest: "sha256:a"}
	for _, i := range from {
		what.claims, what.addresses = append(what.claims, s.Replicas[i].Claim.Name), append(what.addresses, s.Replicas[i].Pod.Status.PodIP)
	}
	r.Job = s.task(index, r.Claim).copy(what)
	r.Pod = &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
		Name: loader, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(now)}},
	}}}}
	return r
}

func created(out Outcome) *batchv1.Job {
	for _, a := range out.Actions {
		if job, is := a.Object.(*batchv1.Job); is && a.Verb == Create {
			return job
		}
	}
	return nil
}

func TestPeersAskTheSourceInTurns(t *testing.T) {
	s := newRack(t, 3)
	for i := range 3 {
		s.claimed(i)
	}
	out := s.requirePlan("create job v-a-0")
	require.Contains(t, argsOf(created(out)), "--index")
	require.NotContains(t, strings.Join(argsOf(created(out)), " "), "peer")
	require.Contains(t, out.Status.Nodes[1].Message, "waits for its turn: 1 of its dataset's loaders ask the source")

	s.loading(0, corev1.PodRunning)
	s.requirePlan()
	// A load that has ended still counts until its replica is recorded as complete.
	s.ended(0, batchv1.JobComplete, indexed)
	s.requirePlan("annotate claim v-a-0")
	s.loading(0, corev1.PodRunning)
	two := newRack(t, 3, "sourceLoaders", "2")
	two.loading(0, corev1.PodRunning)
	two.claimed(1)
	two.claimed(2)
	two.requirePlan("create job v-a-1")
	// A pod whose Job is gone still asks the source.
	s.Replicas[0].Job, s.Replicas[0].Busy = nil, true
	s.requirePlan()
	// A loader that no node accepts does not block other loads.
	r := s.loading(0, corev1.PodPending)
	r.Pod.CreationTimestamp = metav1.NewTime(now.Add(-beforeDisplacing))
	r.Pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	s.requirePlan("create job v-a-1")
	// Nor does a loader whose node does not answer. Its own replica is not started again.
	for _, dead := range []func(*Replica){
		func(r *Replica) { r.NodeNotReady = true },
		func(r *Replica) { r.Pod.DeletionTimestamp = &metav1.Time{Time: now.Add(-beforeDisplacing)} },
	} {
		r = s.loading(0, corev1.PodRunning)
		r.Pod.DeletionTimestamp = &metav1.Time{Time: now.Add(time.Second - beforeDisplacing)}
		s.requirePlan() // its pod is being deleted, and may take a moment to end
		dead(r)
		s.requirePlan("create job v-a-1")
	}
}

// A copying loader whose node does not answer does not block other copies.
func TestPeersCopyWhereALoaderIsLost(t *testing.T) {
	s := newRack(t, 3)
	s.peerServer(0)
	r := s.copying(1, 0)
	s.claimed(2)
	s.requirePlan()
	r.NodeNotReady = true
	require.True(t, copies(created(s.requirePlan("create job v-a-2"))))
}

// A loader counts as lost when its node has not been ready for a minute.
func TestLoaderOnANodeThatDoesNotAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		status corev1.ConditionStatus
		since  time.Duration
		phase  corev1.PodPhase
		want   bool
	}{
		"it is down":                  {corev1.ConditionFalse, notReadyFor, corev1.PodRunning, true},
		"it is not heard of":          {corev1.ConditionUnknown, notReadyFor, corev1.PodRunning, true},
		"it may be back in a moment":  {corev1.ConditionUnknown, notReadyFor - time.Second, corev1.PodRunning, false},
		"it is ready":                 {corev1.ConditionTrue, time.Hour, corev1.PodRunning, false},
		"the loader had ended before": {corev1.ConditionUnknown, time.Hour, corev1.PodFailed, false},
	} {
		s := newRack(t, 1)
		job := s.unseen(0)
		pod := corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))}},
			Spec:       corev1.PodSpec{NodeName: "node-0"}, Status: corev1.PodStatus{Phase: c.phase},
		}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-0"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: c.status, LastTransitionTime: metav1.NewTime(now.Add(-c.since))}}}}
		s.addLoaders(&cacheView{jobs: []batchv1.Job{*job}, pods: []corev1.Pod{pod}, nodes: []*corev1.Node{node}})
		require.Equal(t, c.want, s.Replicas[0].NodeNotReady, name)
	}
}

// unseen returns a loader's Job that the stage has not observed yet.
func (s *stage) unseen(index int) *batchv1.Job {
	job := s.task(index, s.claimed(index).Claim).load()
	job.UID = "job"
	return job
}

func argsOf(job *batchv1.Job) []string { return job.Spec.Template.Spec.Containers[0].Args }

func TestPeersServeWhileOthersLoad(t *testing.T) {
	s := newRack(t, 3)
	s.indexed(0)
	s.claimed(1)
	s.claimed(2)
	s.requirePlan("delete job v-a-0") // the load has ended
	s.Replicas[0].Job = nil
	out := s.requirePlan("create job v-a-0")
	job := created(out)
	require.Equal(t, rolePeerServer, job.Labels[labelRole])
	require.Equal(t, []string{"serve", "--address=:8091", "--progress=json", "--result=/dev/termination-log", "--listen=:8090", "--versions=/data", "--peers-dir=/peers", "--peers-dataset=" + s.hash(), "--", "/data"}, argsOf(job))
	pod := job.Spec.Template.Spec
	require.NotNil(t, pod.Containers[0].ReadinessProbe)
	require.Len(t, pod.Volumes, 2)
	require.Equal(t, "peers", pod.Volumes[1].Secret.SecretName)
	require.True(t, pod.Containers[0].VolumeMounts[0].ReadOnly)
	require.Contains(t, out.Status.Nodes[1].Message, "waits for a replica that it can be copied from")

	s.peerServer(0)
	out = s.requirePlan("create job v-a-1")
	job = created(out)
	require.Equal(t, "v-a-0", job.Annotations[annotationPeers])
	require.Contains(t, argsOf(job), "--peer=10.0.0.0:8091")
	require.Contains(t, argsOf(job), "--peer-index=sha256:a")
	require.Len(t, job.Spec.Template.Spec.Volumes, 2, "no credentials of the source")
	require.Equal(t, "peers", job.Spec.Template.Spec.Volumes[1].Secret.SecretName)

	s.copying(1, 0)
	s.requirePlan() // one serves, so only one copies
	s.indexed(1).Job = nil
	s.requirePlan("create job v-a-2")

	s.copying(2, 0)
	s.requirePlan()
	s.indexed(2).Job = nil
	s.requirePlan("delete job v-a-0") // no replica is left to copy it
}

// The number of complete replicas doubles in each round: seven rounds, including the load from the source,
// complete 64 replicas.
func TestPeersDouble(t *testing.T) {
	const replicas = 64
	s := newRack(t, replicas)
	for i := range replicas {
		s.claimed(i)
	}
	rounds, atSource := 0, 0
	for len(s.Labelled) < replicas {
		rounds++
		require.LessOrEqual(t, rounds, 7)
		_, out := s.plan()
		for _, a := range out.Actions {
			if job, is := a.Object.(*batchv1.Job); is && a.Verb == Create && job.Labels[labelRole] == roleLoad {
				if !copies(job) {
					atSource++
				}
				var index int
				_, err := fmt.Sscanf(job.Name, "v-a-%d", &index)
				require.NoError(t, err)
				s.peerServer(index)
			}
		}
	}
	require.Equal(t, 1, atSource)
	require.Equal(t, 7, rounds)
}

func TestPeersThatFailLeadToTheSource(t *testing.T) {
	s := newRack(t, 2)
	s.peerServer(0)
	r := s.copying(1, 0)
	fail := func(message string) {
		r.Pod.Status.Phase = corev1.PodFailed
		r.Pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: message, StartedAt: metav1.NewTime(now)}}
	}
	fail("")
	s.requirePlan() // it was killed, and is started again
	fail(`{"state":"failed","message":"no peer has the index"}`)
	out := s.requirePlan("annotate claim v-a-1", "delete job v-a-1")
	require.False(t, out.Failed)
	require.Equal(t, "PeersFailed", out.Actions[0].Reason)
	require.Contains(t, out.Actions[0].Message, "no peer has the index")
	require.NotEmpty(t, out.Actions[0].Annotations[annotationPeersFailed])

	// The same if the Job failed permanently: the source may have what the peers lack.
	r.Job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue}}
	s.requirePlan("annotate claim v-a-1", "delete job v-a-1")

	maps.Copy(r.Claim.Annotations, out.Actions[0].Annotations)
	r.Job, r.Pod = nil, nil
	got, out := s.plan()
	require.Equal(t, []string{"delete job v-a-0", "create job v-a-1"}, got) // no replica copies any more
	require.False(t, copies(created(out)))

	r = s.ended(1, batchv1.JobFailed, `{"message":"denied"}`)
	r.Claim.Annotations[annotationPeersFailed] = "x"
	r.Pod.Status.ContainerStatuses[0].State.Terminated.StartedAt = metav1.NewTime(now)
	_, out = s.plan()
	require.True(t, out.Failed, "the source has the last word")
}

// A server that does not start or cannot serve does not block loads: they ask the source.
func TestPeersThatDoNotServe(t *testing.T) {
	s := newRack(t, 2)
	r := s.peerServer(0)
	s.claimed(1)
	r.Pod = nil
	s.requirePlan()
	r.Job.CreationTimestamp = metav1.NewTime(now.Add(-peerServerStartTime))
	require.False(t, copies(created(s.requirePlan("create job v-a-1"))))

	r = s.peerServer(0)
	r.Job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-time.Second))}}
	s.requirePlan("create job v-a-1")

	// A replica without an index cannot serve.
	s.completed(0)
	s.requirePlan("create job v-a-1")
	require.False(t, copies(created(s.requirePlan("create job v-a-1"))))
}

// A replica that is to be evicted does not serve.
func TestPeersThatGo(t *testing.T) {
	s := newRack(t, 2)
	r := s.peerServer(0)
	s.claimed(1)
	r.Volume.Annotations[replica.AnnotationEvict] = "x"
	got, out := s.plan()
	require.Equal(t, []string{"unlabel node-0", "delete job v-a-0", "create job v-a-1"}, withoutAnnotate(got))
	require.False(t, copies(created(out)))

	// The same if the spec cannot be parsed.
	s.Labelled = nil
	words := []string{}
	for _, a := range Evict(s.Observed) {
		words = append(words, fmt.Sprintf("%s %s", a.Verb, a.Object.GetName()))
	}
	require.Equal(t, []string{"delete v-a-0", "annotate pvc-0"}, words)
}

func withoutAnnotate(words []string) []string {
	return slices.DeleteFunc(words, func(w string) bool { return strings.HasPrefix(w, "annotate") })
}

// If the source changed between two loads, the content that most replicas hold is copied.
func TestPeersHoldTheSame(t *testing.T) {
	s := newRack(t, 4)
	s.peerServer(0).Claim.Annotations[annotationLoaded] = strings.Replace(indexed, "sha256:a", "sha256:b", 1)
	s.peerServer(1)
	s.peerServer(2)
	s.claimed(3)
	got, out := s.plan()
	require.Contains(t, got, "create job v-a-3")
	require.Contains(t, argsOf(created(out)), "--peer-index=sha256:a")
	require.NotContains(t, created(out).Annotations[annotationPeers], "v-a-0")
}

func TestParsePeers(t *testing.T) {
	base := func(options ...string) flexlvmv1.VolumeConfig {
		v := flexlvmv1.VolumeConfig{
			ID: "a", Replicas: 2, SourceType: flexlvmv1.SourceS3, Capacity: "1Gi", Labels: map[string]flexlvmv1.LabelValue{"k": "v"},
			Options: map[string]flexlvmv1.OptionValue{"sourceURL": "s3://b/p/", "awsCredentialsSecretName": "s"},
		}
		for i := 0; i < len(options); i += 2 {
			v.Options[options[i]] = flexlvmv1.OptionValue(options[i+1])
		}
		return v
	}
	got, err := ParseSource(base("peersSecretName", "p"))
	require.NoError(t, err)
	require.Equal(t, 1, got.SourceLoaders)
	got, err = ParseSource(base("peersSecretName", "p", "sourceLoaders", "3"))
	require.NoError(t, err)
	require.Equal(t, 3, got.SourceLoaders)
	without, err := ParseSource(base())
	require.NoError(t, err)
	require.Equal(t, without.Load(0), got.Load(0), "what is there stays")
	for _, wrong := range [][]string{
		{"sourceLoaders", "2"}, {"peersSecretName", "p", "sourceLoaders", "0"}, {"peersSecretName", "p", "sourceLoaders", "many"},
		{"peersSecretName", "p", "distributionStrategy", `{"*":2}`},
	} {
		_, err := ParseSource(base(wrong...))
		require.ErrorContains(t, err, wrong[len(wrong)-2])
	}
	v := base("peersSecretName", "p", "refresh", "true")
	v.Replicas = 1
	_, err = ParseSource(v)
	require.ErrorContains(t, err, "refresh")
	v = base("peersSecretName", "p")
	v.Replicas, v.SourceType = 1, flexlvmv1.SourceS3Dev
	_, err = ParseSource(v)
	require.ErrorContains(t, err, "peersSecretName")
}
