package dataset

import (
	"fmt"
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
	"k8s.io/apimachinery/pkg/types"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/replica"
)

var now = time.Date(2026, 11, 21, 16, 0, 0, 0, time.UTC)

// stage is a Observed with what a test needs to change it.
type stage struct {
	*testing.T
	*Observed
}

// newStage wants two replicas of an S3 dataset, on three nodes; the claim of its
// consumers is there.
func newStage(t *testing.T, changes ...func(*flexlvmv1.VolumeConfig)) *stage {
	t.Helper()
	config := flexlvmv1.VolumeConfig{
		ID: "a", Replicas: 2, SourceType: flexlvmv1.SourceS3, AccessMode: corev1.ReadWriteOnce, Capacity: "1Gi",
		Labels:  map[string]flexlvmv1.LabelValue{"k": "v"},
		Options: map[string]flexlvmv1.OptionValue{"sourceURL": "s3://b/p/", "awsCredentialsSecretName": "s"},
	}
	for _, change := range changes {
		change(&config)
	}
	source, err := ParseSource(config)
	require.NoError(t, err)
	owner := &flexlvmv1.VolumeManager{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "v", UID: "uid"}, Spec: flexlvmv1.VolumeManagerSpec{Volumes: []flexlvmv1.VolumeConfig{config}}}
	s := &stage{t, &Observed{
		Owner: owner, Config: config, Source: source, Wanted: true, Image: "loader", Cluster: "cluster", Class: map[string]string{"volumeGroup": "fast"},
		Replicas: map[int]*Replica{}, Fit: 3, Barred: map[string]bool{}, Now: now,
	}}
	if !source.Writable() {
		s.Readers.Claim = readersClaim(owner, config, source)
		s.Readers.Claim.Status.Phase = corev1.ClaimBound
		s.Readers.Volume = readersVolume(owner, config, source, s.Class, s.Cluster)
		s.Readers.Volume.Status.Phase = corev1.VolumeBound
	}
	return s
}

// claimed gives a replica a claim that is bound on node-<index>.
func (s *stage) claimed(index int) *Replica {
	r := &Replica{Claim: replicaClaim(s.Owner, s.Config, s.Source, index), Node: fmt.Sprintf("node-%d", index)}
	r.Claim.UID = types.UID(fmt.Sprintf("claim-%d", index))
	r.Claim.Status.Phase, r.Claim.Status.Capacity = corev1.ClaimBound, corev1.ResourceList{corev1.ResourceStorage: s.Source.Capacity}
	r.Volume = &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{
		Name: fmt.Sprintf("pvc-%d", index), Annotations: map[string]string{replica.AnnotationEviction: string(s.Source.Eviction)},
	}}
	s.Replicas[index] = r
	return r
}

// loading gives it a Job, whose pod is in a phase.
func (s *stage) loading(index int, phase corev1.PodPhase) *Replica {
	r := s.claimed(index)
	r.Job = s.task(index, r.Claim).load()
	r.Pod = &corev1.Pod{Status: corev1.PodStatus{Phase: phase}}
	return r
}

func (s *stage) ended(index int, how batchv1.JobConditionType, message string) *Replica {
	r := s.loading(index, corev1.PodSucceeded)
	r.Job.Status.Conditions = []batchv1.JobCondition{{Type: how, Status: corev1.ConditionTrue, Reason: "Because", LastTransitionTime: metav1.NewTime(now.Add(-time.Second))}}
	r.Pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: loader, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: message}}}}
	return r
}

// completed gives it all.
func (s *stage) completed(index int) *Replica {
	r := s.ended(index, batchv1.JobComplete, `{"state":"complete","filesDone":3,"filesTotal":3,"bytesDone":30,"bytesTotal":30}`)
	r.Claim.Annotations[replica.AnnotationComplete] = s.Source.Load(index)
	r.Claim.Annotations[annotationLoaded] = `{"state":"complete","filesDone":3,"filesTotal":3,"bytesDone":30,"bytesTotal":30}`
	r.Volume.Annotations[replica.AnnotationComplete] = replica.Complete
	s.Labelled = append(s.Labelled, r.Node)
	return r
}

// plan gives the actions as words.
func (s *stage) plan() ([]string, Outcome) {
	s.Helper()
	out := Plan(s.Observed)
	var words []string
	for _, a := range out.Actions {
		switch {
		case a.Node != "":
			words = append(words, fmt.Sprintf("%s %s", a.Verb, a.Node))
			require.Equal(s, replica.NodeLabel(s.hash()), a.Key)
		default:
			kind := strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", a.Object), "*v1."))
			kind = strings.NewReplacer("persistentvolumeclaim", "claim", "persistentvolume", "volume").Replace(kind)
			words = append(words, fmt.Sprintf("%s %s %s", a.Verb, kind, a.Object.GetName()))
		}
	}
	return words, out
}

func (s *stage) requirePlan(words ...string) Outcome {
	s.Helper()
	got, out := s.plan()
	if len(words) == 0 {
		require.Empty(s, got)
	} else {
		require.Equal(s, words, got)
	}
	return out
}

func TestBegin(t *testing.T) {
	s := newStage(t)
	s.Readers = Readers{}
	out := s.requirePlan("create claim v-a", "create volume flexlvm-ds-"+s.hash(), "create claim v-a-0", "create claim v-a-1")
	require.Equal(t, "v-a", out.Status.VolumeSource.PersistentVolumeClaim.ClaimName)
	require.True(t, out.Status.VolumeSource.PersistentVolumeClaim.ReadOnly)
	require.False(t, out.Failed)
	require.Zero(t, out.Status.ReadyReplicas)

	volume := out.Actions[1].Object.(*corev1.PersistentVolume)
	require.Equal(t, map[string]string{
		"volumeGroup": "fast", "size": "1073741824", "kind": "dataset", "volume": "ds-" + s.hash(), "clusterUID": "cluster", "readOnly": "true",
	}, volume.Spec.FlexVolume.Options)
	require.Equal(t, "ns/v-a", volume.Spec.ClaimRef.Namespace+"/"+volume.Spec.ClaimRef.Name)
	require.Equal(t, corev1.PersistentVolumeReclaimRetain, volume.Spec.PersistentVolumeReclaimPolicy)
	require.Equal(t, replica.NodeLabel(s.hash()), volume.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Key)
	require.NotContains(t, volume.Labels, "flexlvm.io/node", "it would count as a volume of a node")
	require.NotContains(t, volume.Labels, "k", "the user's labels are for his namespace")
	claim := out.Actions[2].Object.(*corev1.PersistentVolumeClaim)
	require.Equal(t, DefaultClass, *claim.Spec.StorageClassName)
	require.Equal(t, "Never", claim.Annotations[replica.AnnotationEviction])
	require.Equal(t, "v", claim.Labels["k"])
}

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

	// The loader has ended, and then it is written down, and then pods may come.
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

// recorded is what a status that was written leaves for the next plan.
func (s *stage) recorded(out Outcome) {
	s.Owner.Status.Volumes, s.Owner.Status.ObservedGeneration = []flexlvmv1.VolumeStatus{out.Status}, s.Owner.Generation
}

func TestFailedLoad(t *testing.T) {
	s := newStage(t)
	s.completed(1)
	r := s.ended(0, batchv1.JobFailed, `{"state":"failed","message":"access denied; look at the keys in Secret s"}`)
	// It is written down first, and then nothing is left of it.
	out := s.requirePlan()
	require.True(t, out.Failed)
	require.Equal(t, flexlvmv1.ReplicaFailed, out.Status.Nodes[0].State)
	require.Equal(t, "access denied; look at the keys in Secret s", out.Status.Nodes[0].Message)
	s.recorded(out)
	s.recorded(s.requirePlan("delete job v-a-0", "delete claim v-a-0"))
	r.Job, r.Pod = nil, nil // and then it is killed
	s.recorded(s.requirePlan("delete claim v-a-0"))
	r.Claim, r.Volume = nil, nil
	out = s.requirePlan()
	require.True(t, out.Failed)
	require.Contains(t, out.Status.Message, "access denied")
	s.recorded(out)

	// Until somebody says so, or changes what it depends on.
	s.Owner.Annotations = map[string]string{AnnotationRetry: "1"}
	require.False(t, s.requirePlan("create claim v-a-0").Failed)
	s.Owner.Annotations = nil
	s.Source.Secret = "another"
	s.requirePlan("create claim v-a-0")
	// Where the status is lost, it is tried once more, and not for ever.
	s.Owner.Status.Volumes = nil
	s.requirePlan("create claim v-a-0")

	// A Job that nobody knows why it failed.
	s.ended(0, batchv1.JobFailed, "").Pod = nil
	require.Contains(t, s.requirePlan().Status.Nodes[0].Message, "Because")
}

// A loader that left no result is quoted from the end of its log.
func TestFailureWithoutResult(t *testing.T) {
	const progress = `{"state":"fetching","filesDone":1,"filesTotal":3}` + "\n"
	for name, c := range map[string]struct{ message, want string }{
		"a result":           {`{"state":"failed","message":"access denied"}`, "access denied"},
		"nothing":            {"", "the loader ended without a word (Error); see kubectl describe job, and the logs of its pods"},
		"progress alone":     {progress + progress, "the loader ended without a word (Error); see kubectl describe job, and the logs of its pods"},
		"one line of it":     {progress, "the loader ended without a word (Error); see kubectl describe job, and the logs of its pods"},
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
	long := lastWords(strings.Repeat("ü", mostMessage) + "!")
	require.LessOrEqual(t, len(long), mostMessage+len("… "))
	require.True(t, utf8.ValidString(long))
	require.True(t, strings.HasPrefix(long, "… ü") && strings.HasSuffix(long, "ü!"))
}

// A loader that said only part of it all could be had is no success: see failurePolicy.
func TestFailurePolicy(t *testing.T) {
	rules := failurePolicy().Rules
	require.Equal(t, batchv1.PodFailurePolicyActionIgnore, rules[0].Action, "a pod that was sent away")
	require.Equal(t, batchv1.PodFailurePolicyActionFailJob, rules[1].Action)
	require.Equal(t, batchv1.PodFailurePolicyOnExitCodesOpNotIn, rules[1].OnExitCodes.Operator)
	require.Equal(t, []int32{75, 137, 143}, rules[1].OnExitCodes.Values, "so 1, 2 and 3 are final")
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

// What is lost is made again; nothing is remembered of it.
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
		"a node bears a label that it has not earned": {func(s *stage) {
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

func TestEdits(t *testing.T) {
	t.Run("fewer", func(t *testing.T) {
		s := newStage(t)
		s.completed(0)
		s.completed(1)
		s.Config.Replicas = 1
		s.requirePlan("unlabel node-1")
		s.Labelled = []string{"node-0"}
		out := s.requirePlan("delete job v-a-1", "delete claim v-a-1")
		require.Equal(t, flexlvmv1.MessageSuccess, out.Status.Message)
		s.Replicas[1] = &Replica{}
		require.Len(t, s.requirePlan().Status.Nodes, 1)
	})
	t.Run("larger", func(t *testing.T) {
		s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas = 1 })
		r := s.completed(0)
		s.Source.Capacity = resource.MustParse("2Gi")
		s.requirePlan("grow claim v-a-0")
		r.Claim.Spec.Resources = room(s.Source.Capacity)
		// kubelet grows what a pod mounts, so one comes, by and by.
		out := s.requirePlan("delete job v-a-0")
		require.Equal(t, "grows from 1Gi to 2Gi", out.Status.Nodes[0].Message)
		require.EqualValues(t, 1, out.Status.ReadyReplicas, "it serves meanwhile")
		r.Job = nil
		out = s.requirePlan("create job v-a-0")
		job := out.Actions[0].Object.(*batchv1.Job)
		require.Equal(t, roleVisit, job.Labels[labelRole])
		require.Nil(t, job.Spec.Template.Spec.Affinity, "its node bears the label")
		r.Job = job
		s.requirePlan()
		job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now)}}
		s.requirePlan() // no haste where it did not help
		r.Claim.Status.Capacity[corev1.ResourceStorage] = s.Source.Capacity
		require.Empty(t, s.requirePlan().Status.Nodes[0].Message)
	})
	t.Run("larger before it is bound", func(t *testing.T) {
		s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas = 1 })
		s.loading(0, corev1.PodPending).Claim.Status.Phase = corev1.ClaimPending
		s.Source.Capacity = resource.MustParse("2Gi")
		s.requirePlan("delete job v-a-0")
	})
	t.Run("elsewhere", func(t *testing.T) {
		s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas = 1 })
		s.completed(0)
		s.Barred["node-0"] = true
		s.requirePlan("unlabel node-0")
		s.Labelled = nil
		s.requirePlan("delete job v-a-0", "delete claim v-a-0")
	})
	t.Run("other data", func(t *testing.T) {
		s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas = 1 })
		s.completed(0)
		s.Source.URL = "s3://b/q/"
		out := s.requirePlan("unlabel node-0")
		require.Zero(t, out.Status.ReadyReplicas)
		s.Labelled = nil
		s.requirePlan("delete job v-a-0", "delete claim v-a-0")
	})
	t.Run("may be evicted from now on", func(t *testing.T) {
		s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas = 1 })
		s.completed(0)
		s.Source.Eviction = "LRU"
		out := s.requirePlan("annotate volume pvc-0")
		require.Equal(t, "LRU", out.Actions[0].Annotations[replica.AnnotationEviction])
	})
	t.Run("other credentials change nothing that is complete", func(t *testing.T) {
		s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas = 1 })
		s.completed(0)
		s.Source.Secret = "other"
		s.requirePlan()
	})
}

func TestTooFewNodes(t *testing.T) {
	s := newStage(t)
	s.Fit = 1
	out := s.requirePlan("create claim v-a-0")
	require.True(t, out.Failed)
	require.Equal(t, "replicas [2] greater than number of nodes [1]", out.Status.Message)
	// A node that comes mends it.
	s.Fit = 2
	require.False(t, s.requirePlan("create claim v-a-0", "create claim v-a-1").Failed)
}

func TestEviction(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas, v.Options["evictionPolicy"] = 1, "LRU" })
	r := s.completed(0)
	r.Volume.Annotations[replica.AnnotationEvict] = "2026-11-21T16:00:00Z"
	// The label goes, and only when that is seen the daemon is told.
	out := s.requirePlan("unlabel node-0")
	require.Zero(t, out.Status.ReadyReplicas)
	s.Labelled = nil
	out = s.requirePlan("annotate volume pvc-0")
	require.Equal(t, map[string]string{replica.AnnotationUnlabelled: "2026-11-21T16:00:00Z"}, out.Actions[0].Annotations)
	r.Volume.Annotations[replica.AnnotationUnlabelled] = "2026-11-21T16:00:00Z"
	s.requirePlan() // the daemon's turn

	// It thinks better of it: a pod came.
	evictable := r.Volume.DeepCopy()
	delete(r.Volume.Annotations, replica.AnnotationEvict)
	delete(r.Volume.Annotations, replica.AnnotationUnlabelled)
	s.requirePlan("label node-0")

	// Or it does not.
	r.Volume = evictable
	r.Volume.Annotations[replica.AnnotationEvictable] = "2026-11-21T16:00:10Z"
	out = s.requirePlan("delete job v-a-0", "delete claim v-a-0")
	require.Contains(t, out.Actions[1].Message, "evicted")
	// And then it heals.
	r.Job, r.Claim.DeletionTimestamp = nil, &metav1.Time{Time: now}
	s.requirePlan()
	s.Replicas = map[int]*Replica{}
	s.requirePlan("create claim v-a-0")
}

// Room is promised on the strength of an eviction that has begun: it ends also where
// the spec cannot be read by then.
func TestEvictionEndsWhateverTheSpecSays(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Options["evictionPolicy"] = "LRU" })
	s.completed(0)
	r := s.completed(1)
	s.Source = Source{}
	require.Empty(t, Evict(s.Observed))
	r.Volume.Annotations[replica.AnnotationEvict] = "2026-11-21T16:00:00Z"
	require.Equal(t, []Action{{Verb: Unlabel, Node: "node-1", Key: s.label()}}, Evict(s.Observed))
	s.Labelled = []string{"node-0"}
	actions := Evict(s.Observed)
	require.Len(t, actions, 1)
	require.Contains(t, actions[0].Annotations, replica.AnnotationUnlabelled)
	r.Volume.Annotations[replica.AnnotationUnlabelled] = "2026-11-21T16:00:00Z"
	require.Empty(t, Evict(s.Observed), "the daemon's turn")
	r.Volume.Annotations[replica.AnnotationEvictable] = "2026-11-21T16:00:10Z"
	actions = Evict(s.Observed)
	require.Len(t, actions, 2)
	require.Equal(t, Delete, actions[1].Verb)
	r.Claim.Annotations[replica.AnnotationWritable] = replica.Writable
	require.Empty(t, Evict(s.Observed), "what consumers wrote is kept")
}

func TestStream(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) {
		v.Replicas, v.Options["stream"], v.Options["streamAfter"] = 1, "true", "10Mi"
	})
	r := s.loading(0, corev1.PodRunning)
	require.Contains(t, r.Job.Spec.Template.Spec.Containers[0].Args, "--ready-after=10Mi")
	s.requirePlan()
	r.Pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	out := s.requirePlan("label node-0")
	require.Equal(t, flexlvmv1.ReplicaStreaming, out.Status.Nodes[0].State)
	require.EqualValues(t, 1, out.Status.ReadyReplicas)
	require.Zero(t, out.Loaded)
	require.Equal(t, flexlvmv1.MessageSuccess, out.Status.Message)
	// Its loader dies: nobody else comes before the next one is ready.
	s.Labelled = []string{"node-0"}
	r.Pod.Status.Phase, r.Pod.Status.Conditions[0].Status = corev1.PodFailed, corev1.ConditionFalse
	s.requirePlan("unlabel node-0")
	// It ends well: no gap until that is written down.
	s.ended(0, batchv1.JobComplete, `{"state":"complete"}`)
	s.requirePlan("annotate claim v-a-0")
}

func TestOnlyOneWrites(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) {
		v.SourceType, v.Replicas, v.Options = flexlvmv1.SourceAeon, 1, nil
	})
	out := s.requirePlan("create claim v-a-0")
	require.Equal(t, "v-a-0", out.Status.VolumeSource.PersistentVolumeClaim.ClaimName)
	require.False(t, out.Status.VolumeSource.PersistentVolumeClaim.ReadOnly)
	s.claimed(0)
	out = s.requirePlan("create job v-a-0")
	require.Equal(t, "prepare", out.Actions[0].Object.(*batchv1.Job).Spec.Template.Spec.Containers[0].Args[0])
}

func TestShare(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) {
		v.SourceType, v.AccessMode = flexlvmv1.SourceNFS, corev1.ReadWriteMany
		v.Options = map[string]flexlvmv1.OptionValue{"server": "10.0.0.1", "path": "/x"}
	})
	made := s.Readers
	s.Readers = Readers{}
	out := s.requirePlan("create claim v-a", "create volume flexlvm-ds-"+s.hash())
	require.Zero(t, out.Status.ReadyReplicas)
	volume := out.Actions[1].Object.(*corev1.PersistentVolume)
	require.Equal(t, "10.0.0.1", volume.Spec.NFS.Server)
	require.Nil(t, volume.Spec.NodeAffinity)
	require.Equal(t, "v-a", volume.Spec.ClaimRef.Name, "no stranger may have it")
	require.Equal(t, volume.Name, out.Actions[0].Object.(*corev1.PersistentVolumeClaim).Spec.VolumeName)

	s.Readers = made
	out = s.requirePlan()
	require.Equal(t, flexlvmv1.MessageSuccess, out.Status.Message)
	require.EqualValues(t, 2, out.Status.ReadyReplicas)
	// Another share: both are made anew, as soon as no pod uses the old one.
	s.Source.NFS = &corev1.NFSVolumeSource{Server: "10.0.0.2", Path: "/x"}
	s.requirePlan("delete claim v-a")
	s.Readers.Claim = nil
	s.requirePlan("delete volume flexlvm-ds-" + s.hash())
}

func TestRelease(t *testing.T) {
	s := newStage(t)
	s.completed(0)
	s.completed(1)
	s.Wanted = false
	s.requirePlan("unlabel node-0", "unlabel node-1")
	s.Labelled = nil
	out := s.requirePlan("delete claim v-a")
	require.False(t, out.Gone)
	// A pod still uses it: the data stay.
	s.Readers.Claim.DeletionTimestamp = &metav1.Time{Time: now}
	out = s.requirePlan()
	require.Contains(t, out.Status.Message, "as soon as no pod uses claim v-a")
	s.Readers.Claim = nil
	s.requirePlan("delete volume flexlvm-ds-" + s.hash())
	s.Readers.Volume = nil
	s.requirePlan("delete job v-a-0", "delete claim v-a-0", "delete job v-a-1", "delete claim v-a-1")
	s.Replicas = map[int]*Replica{}
	require.True(t, s.requirePlan().Gone)
}

// While it loads, too.
func TestReleaseWhileLoading(t *testing.T) {
	s := newStage(t)
	s.loading(0, corev1.PodRunning)
	s.Readers, s.Wanted = Readers{}, false
	s.requirePlan("delete job v-a-0", "delete claim v-a-0")
}

func TestUpload(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) {
		v.SourceType, v.Replicas = flexlvmv1.SourceS3Dev, 1
		v.Options["outputURL"] = "s3://out/run-1/"
	})
	r := s.completed(0)
	s.Labelled, s.Wanted, s.Upload = nil, false, true
	s.InUse = []string{"trainer"}
	out := s.requirePlan()
	require.Contains(t, out.Status.Message, "as soon as no pod uses it; now there are trainer")
	s.InUse = nil
	out = s.requirePlan("create job v-a-put")
	s.Put = out.Actions[0].Object.(*batchv1.Job)
	args := s.Put.Spec.Template.Spec.Containers[0].Args
	require.Equal(t, []string{"--", "/data", "s3://out/run-1/"}, args[len(args)-3:])
	require.Equal(t, "put", args[0])
	require.Equal(t, flexlvmv1.ReplicaUploading, s.requirePlan().Status.Nodes[0].State)

	// What cannot be uploaded is kept.
	s.Put.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: "Because"}}
	out = s.requirePlan()
	require.True(t, out.Failed)
	require.Contains(t, out.Status.Message, "so it is kept")
	s.Owner.Annotations = map[string]string{AnnotationRetry: "1"}
	s.requirePlan("delete job v-a-put")
	s.Owner.Annotations = nil

	// That it is there is written down before anything goes.
	s.Put.Status.Conditions[0].Type = batchv1.JobComplete
	out = s.requirePlan()
	require.Equal(t, "s3://out/run-1/", out.Status.Uploaded)
	s.recorded(out)
	s.recorded(s.requirePlan("delete job v-a-0", "delete claim v-a-0"))
	// The Job that uploaded goes last, wherever it is killed.
	r.Job = nil
	s.recorded(s.requirePlan("delete claim v-a-0"))
	r.Claim.DeletionTimestamp = &metav1.Time{Time: now}
	out = s.requirePlan("delete job v-a-put")
	require.Equal(t, "s3://out/run-1/", out.Status.Uploaded)
	s.recorded(out)
	s.Put = nil
	s.recorded(s.requirePlan())
	r.Claim = nil
	out = s.requirePlan()
	require.True(t, out.Gone)
	require.Equal(t, "s3://out/run-1/", out.Status.Uploaded)
	// The next time it is uploaded again.
	s.Wanted, s.Upload = true, false
	require.Empty(t, Plan(s.Observed).Status.Uploaded)
}

// newUpload is of a volume that a user has written to, which is to be released: as far
// as the Job that uploads it, which has ended well.
func newUpload(t *testing.T) (*stage, *Replica) {
	t.Helper()
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) {
		v.SourceType, v.Replicas = flexlvmv1.SourceS3Dev, 1
		v.Options["outputURL"] = "s3://out/"
	})
	s.Owner.Generation = 2
	r := s.completed(0)
	s.Labelled, s.Wanted, s.Upload = nil, false, true
	s.Put = s.requirePlan("create job v-a-put").Actions[0].Object.(*batchv1.Job)
	s.Put.CreationTimestamp = metav1.NewTime(now)
	s.Put.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	return s, r
}

// Of what was uploaded once nothing follows for what was written since.
func TestUploadOfEarlierIsNotBelieved(t *testing.T) {
	t.Run("wanted again", func(t *testing.T) {
		s, _ := newUpload(t)
		s.Owner.Generation, s.Wanted, s.Upload, s.Labelled = 3, true, false, []string{"node-0"}
		s.requirePlan("delete job v-a-put")
	})
	t.Run("wanted again, and released again", func(t *testing.T) {
		s, _ := newUpload(t)
		s.Owner.Generation = 4
		out := s.requirePlan("delete job v-a-put")
		require.Empty(t, out.Status.Uploaded)
	})
	t.Run("that is in the status", func(t *testing.T) {
		s, _ := newUpload(t)
		s.recorded(s.requirePlan())
		s.Owner.Generation, s.Put = 4, nil
		s.requirePlan("create job v-a-put")
	})
	t.Run("of another claim", func(t *testing.T) {
		s, r := newUpload(t)
		r.Claim.UID = "another"
		s.requirePlan("delete job v-a-put")
	})
	t.Run("elsewhere", func(t *testing.T) {
		s, _ := newUpload(t)
		s.Source.OutputURL = "s3://other/"
		s.requirePlan("delete job v-a-put")
	})
}

func TestResync(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas, v.Options["resync"] = 1, "10m" })
	r := s.completed(0)
	out := s.requirePlan()
	require.Less(t, out.Again, time.Minute)
	s.Now = now.Add(10 * time.Minute)
	s.requirePlan("delete job v-a-0")
	r.Job = nil
	out = s.requirePlan("create job v-a-0")
	require.Contains(t, out.Actions[0].Object.(*batchv1.Job).Spec.Template.Spec.Containers[0].Args, "--sync")
	// A visit that fails leaves what is there.
	r.Job = out.Actions[0].Object.(*batchv1.Job)
	r.Job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: "Because", LastTransitionTime: metav1.NewTime(s.Now)}}
	out = s.requirePlan()
	require.False(t, out.Failed)
	require.EqualValues(t, 1, out.Loaded)
	require.Contains(t, out.Status.Nodes[0].Message, "its last visit failed")
}

func TestNamesFit(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.ID, v.Replicas = strings.Repeat("i", 63), 5000 })
	s.Owner.Name = strings.Repeat("v", 253)
	s.Readers, s.Fit = Readers{}, 5000
	seen := map[string]bool{}
	for _, a := range Plan(s.Observed).Actions {
		name := a.Object.GetName()
		require.False(t, seen[name], name)
		seen[name] = true
		require.LessOrEqual(t, len(name), 63, name)
		if a.Object.GetLabels()[labelReplica] != "" {
			require.LessOrEqual(t, len(name), 52, name)
		}
		for key, value := range a.Object.GetLabels() {
			require.LessOrEqual(t, len(value), 63, key)
		}
	}
	require.Len(t, seen, 5002)
	require.LessOrEqual(t, len(strings.TrimPrefix(s.label(), "flexlvm.io/")), 63)
}

// Each dataset has names of its own, also of the same source.
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
