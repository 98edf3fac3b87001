package dataset

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/replica"
)

var now = time.Date(2026, 11, 21, 16, 0, 0, 0, time.UTC)

// stage is an Observed that a test changes step by step.
type stage struct {
	*testing.T
	*Observed
}

// newStage returns a stage with two wanted replicas of an S3 dataset and three nodes. The consumers' claim and
// PersistentVolume exist and are bound, unless the source is writable.
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
		Replicas: map[int]*Replica{}, Fitting: fitting(3), NotMatching: map[string]bool{}, Now: now,
	}}
	if !source.Writable() {
		s.Readers.Claim = readersClaim(owner, config, source)
		s.Readers.Claim.Status.Phase = corev1.ClaimBound
		s.Readers.Volume = readersVolume(owner, config, s.own(), s.Cluster)
		s.Readers.Volume.Status.Phase = corev1.VolumeBound
	}
	return s
}

// claimed adds a replica whose claim is bound on node-<index>.
func (s *stage) claimed(index int) *Replica {
	r := &Replica{Claim: replicaClaim(s.Owner, s.Config, s.Source, index, ""), Node: fmt.Sprintf("node-%d", index)}
	r.Claim.UID = types.UID(fmt.Sprintf("claim-%d", index))
	r.Claim.Status.Phase, r.Claim.Status.Capacity = corev1.ClaimBound, corev1.ResourceList{corev1.ResourceStorage: s.Source.Capacity}
	r.Volume = &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{
		Name: fmt.Sprintf("pvc-%d", index), Annotations: map[string]string{replica.AnnotationEviction: string(s.Source.Eviction)},
	}, Spec: corev1.PersistentVolumeSpec{Capacity: corev1.ResourceList{corev1.ResourceStorage: s.Source.Capacity}}}
	s.Replicas[index] = r
	return r
}

// loading adds a claimed replica with a load Job whose pod is in the given phase.
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

// completed adds a complete replica whose node carries the label.
func (s *stage) completed(index int) *Replica {
	r := s.ended(index, batchv1.JobComplete, `{"state":"complete","filesDone":3,"filesTotal":3,"bytesDone":30,"bytesTotal":30}`)
	r.Claim.Annotations[replica.AnnotationComplete] = s.Source.Load(index)
	r.Claim.Annotations[annotationLoaded] = `{"state":"complete","filesDone":3,"filesTotal":3,"bytesDone":30,"bytesTotal":30}`
	r.Volume.Annotations[replica.AnnotationComplete] = replica.Complete
	s.Labelled = append(s.Labelled, r.Node)
	return r
}

// plan returns the actions of a plan as text, and its outcome.
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

func TestPlanCreatesClaimsFirst(t *testing.T) {
	s := newStage(t)
	s.Readers = Readers{}
	out := s.requirePlan("create claim v-a", "create volume flexlvm-ds-"+s.hash(), "create claim v-a-0", "create claim v-a-1")
	require.Equal(t, "v-a", out.Status.VolumeSource.PersistentVolumeClaim.ClaimName)
	require.True(t, out.Status.VolumeSource.PersistentVolumeClaim.ReadOnly)
	require.False(t, out.Failed)
	require.Zero(t, out.Status.ReadyReplicas)

	volume := out.Actions[1].Object.(*corev1.PersistentVolume)
	require.Equal(t, map[string]string{
		"volumeGroup": "fast", "size": "1073741824", "kind": "dataset", "volume": "ds-" + s.hash(), "clusterUID": "cluster", "readOnly": "true", "versions": "true",
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

func TestPlanAfterSpecChanges(t *testing.T) {
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
		r.Claim.Spec.Resources = storageRequest(s.Source.Capacity)
		// kubelet grows only a mounted volume, so a visit mounts it, after the old Job is deleted.
		out := s.requirePlan("delete job v-a-0")
		require.Equal(t, "grows from 1Gi to 2Gi", out.Status.Nodes[0].Message)
		require.EqualValues(t, 1, out.Status.ReadyReplicas, "it serves meanwhile")
		r.Job = nil
		out = s.requirePlan("create job v-a-0")
		job := out.Actions[0].Object.(*batchv1.Job)
		require.Equal(t, roleVisit, job.Labels[labelRole])
		require.Nil(t, job.Spec.Template.Spec.Affinity, "its node carries the label")
		r.Job = job
		s.requirePlan()
		job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now)}}
		s.requirePlan() // a visit that did not help is not repeated immediately
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
		s.NotMatching["node-0"] = true
		s.Config.NodeAffinity = requiredAffinity(labelExists("pool"))
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

func TestEviction(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas, v.Options["evictionPolicy"] = 1, "LRU" })
	r := s.completed(0)
	r.Volume.Annotations[replica.AnnotationEvict] = "2026-11-21T16:00:00Z"
	// The label is removed first. Only when that is observed, the daemon is notified.
	out := s.requirePlan("unlabel node-0")
	require.Zero(t, out.Status.ReadyReplicas)
	s.Labelled = nil
	out = s.requirePlan("annotate volume pvc-0")
	require.Equal(t, map[string]string{replica.AnnotationUnlabelled: "2026-11-21T16:00:00Z"}, out.Actions[0].Annotations)
	r.Volume.Annotations[replica.AnnotationUnlabelled] = "2026-11-21T16:00:00Z"
	s.requirePlan() // waits for the daemon

	// The daemon cancels the eviction because a pod came: the label is set again.
	evictable := r.Volume.DeepCopy()
	delete(r.Volume.Annotations, replica.AnnotationEvict)
	delete(r.Volume.Annotations, replica.AnnotationUnlabelled)
	s.requirePlan("label node-0")

	// The daemon confirms the eviction: the Job and the claim are deleted.
	r.Volume = evictable
	r.Volume.Annotations[replica.AnnotationEvictable] = "2026-11-21T16:00:10Z"
	out = s.requirePlan("delete job v-a-0", "delete claim v-a-0")
	require.Contains(t, out.Actions[1].Message, "evicted")
	// When both are gone, the replica is created again.
	r.Job, r.Claim.DeletionTimestamp = nil, &metav1.Time{Time: now}
	s.requirePlan()
	s.Replicas = map[int]*Replica{}
	s.requirePlan("create claim v-a-0")
}

// The node has already promised the room of an eviction that has begun, so the eviction completes even if the
// spec can no longer be parsed.
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
	require.Equal(t, "/ready", r.Job.Spec.Template.Spec.Containers[0].ReadinessProbe.HTTPGet.Path)
	s.requirePlan()
	r.Pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	out := s.requirePlan("label node-0")
	require.Equal(t, flexlvmv1.ReplicaStreaming, out.Status.Nodes[0].State)
	require.EqualValues(t, 1, out.Status.ReadyReplicas)
	require.Zero(t, out.Loaded)
	require.Equal(t, flexlvmv1.MessageSuccess, out.Status.Message)
	// If its loader fails, the label is removed: no more pods come until the next loader is ready.
	s.Labelled = []string{"node-0"}
	r.Pod.Status.Phase, r.Pod.Status.Conditions[0].Status = corev1.PodFailed, corev1.ConditionFalse
	s.requirePlan("unlabel node-0")
	// If its loader succeeds, the label stays while the completion is recorded.
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
	// For another share, claim and PersistentVolume are recreated once no pod uses the old claim.
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
	// While a pod uses the claim, the replicas stay.
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

// A volume that is still loading is released, too.
func TestReleaseWhileLoading(t *testing.T) {
	s := newStage(t)
	s.loading(0, corev1.PodRunning)
	s.Readers, s.Wanted = Readers{}, false
	s.requirePlan("delete job v-a-0", "delete claim v-a-0")
}

func TestNamesFit(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.ID, v.Replicas = strings.Repeat("i", 63), 5000 })
	s.Owner.Name = strings.Repeat("v", 253)
	s.Readers, s.Fitting = Readers{}, fitting(5000)
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
