package dataset

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/replica"
)

// holding adds a complete replica that holds a version.
func (s *stage) holding(index int, version string) *Replica {
	r := s.completed(index)
	r.Claim.Annotations[annotationLoaded] = fmt.Sprintf(`{"state":"complete","contents":%q}`, version)
	return r
}

// goes sets the Job that an action creates, and its pod's result. If how is not empty, the Job has ended that
// way.
func (r *Replica) goes(a Action, at time.Time, how batchv1.JobConditionType, result string) {
	r.Job = a.Object.(*batchv1.Job)
	r.Job.UID = types.UID(fmt.Sprintf("%s-%d", r.Job.Name, at.Unix()))
	if how != "" {
		r.Job.Status.Conditions = []batchv1.JobCondition{{Type: how, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(at)}}
	}
	r.Pod = &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
		Name: loader, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: result}},
	}}}}
}

// accept applies the actions of a plan, which may only annotate.
func accept(t *testing.T, out Outcome) {
	t.Helper()
	for _, a := range out.Actions {
		require.Equal(t, Annotate, a.Verb)
		for key, value := range a.Annotations {
			a.Object.GetAnnotations()[key] = value
		}
	}
}

// A refresh waits until the volume can grow: the data that it fetches may not fit before.
func TestRefreshAfterGrowth(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas = 1 })
	r := s.holding(0, "one")
	s.Owner.Annotations = map[string]string{replica.AnnotationRefresh: "1"}
	s.Source.Capacity = resource.MustParse("2Gi")
	r.Claim.Spec.Resources, r.Job = storageRequest(s.Source.Capacity), nil
	s.requirePlan()
	r.Volume.Spec.Capacity[corev1.ResourceStorage] = s.Source.Capacity
	r.Claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue}}
	s.requirePlan("create job v-a-0")
}

// A refresh on demand reaches the replicas one after the other, each once.
func TestRefreshOnDemand(t *testing.T) {
	s := newStage(t)
	replicas := []*Replica{s.holding(0, "one"), s.holding(1, "one")}
	require.Nil(t, s.requirePlan().Status.Nodes[0].RefreshedAt)
	s.Owner.Annotations = map[string]string{replica.AnnotationRefresh: "1"}
	for i, r := range replicas {
		name := fmt.Sprintf("v-a-%d", i)
		s.requirePlan("delete job " + name)
		r.Job = nil
		out := s.requirePlan("create job " + name)
		job := out.Actions[0].Object.(*batchv1.Job)
		require.Contains(t, job.Spec.Template.Spec.Containers[0].Args, "--sync")
		require.Contains(t, job.Spec.Template.Spec.Containers[0].Args, "--versions=/data")
		r.goes(out.Actions[0], s.Now, "", "")
		r.Pod = nil
		r.Report = &protocol.Status{State: protocol.StateFetching, FilesDone: 1, FilesTotal: 2}
		out = s.requirePlan()
		require.EqualValues(t, 1, out.Status.Nodes[i].Refresh.Files)
		require.Equal(t, flexlvmv1.ReplicaComplete, out.Status.Nodes[i].State, "pods go on to come")
		require.EqualValues(t, 2, out.Loaded)
		r.Report = nil

		r.goes(Action{Object: job}, s.Now, batchv1.JobComplete, `{"state":"complete","contents":"two","filesDone":4,"bytesDone":40,"oldVersions":1}`)
		out = s.plan2(t)
		require.Equal(t, "RefreshComplete", out.Actions[0].Reason)
		require.Equal(t, fmt.Sprintf("claim %s on node-%d now holds version two; before, it held one: 4 files, 40 bytes", name, i), out.Actions[0].Message)
		accept(t, Outcome{Actions: out.Actions[:1]})
	}
	out := s.requirePlan()
	require.Equal(t, map[string]int32{"two": 2}, out.Status.Versions)
	require.Equal(t, "two", out.Status.Nodes[1].Version)
	require.EqualValues(t, 1, out.Status.Nodes[1].OldVersions)
	require.NotNil(t, out.Status.Nodes[1].RefreshedAt)

	// While pods still read an old version, a loader checks for that every betweenSweeps, and does not ask the
	// source.
	s.Now = s.Now.Add(betweenSweeps)
	s.requirePlan("delete job v-a-0", "delete job v-a-1")
	replicas[0].Job, replicas[1].Job = nil, nil
	out = s.requirePlan("create job v-a-0", "create job v-a-1")
	require.NotContains(t, out.Actions[0].Object.(*batchv1.Job).Spec.Template.Spec.Containers[0].Args, "--sync")
	for i, r := range replicas {
		r.goes(out.Actions[i], s.Now, batchv1.JobComplete, `{"state":"complete","contents":"two"}`)
	}
	_, out = s.plan()
	require.Len(t, out.Actions, 2)
	require.Empty(t, out.Actions[0].Reason, "that is no news")
	accept(t, out)
	require.Zero(t, s.requirePlan().Status.Nodes[0].OldVersions)
	s.Now = s.Now.Add(24 * time.Hour)
	s.requirePlan()
}

// The loader of a refresh has no readiness probe, even if the dataset streams. The replica stays ready and
// serves the version that it holds.
func TestRefreshOfAStream(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas, v.Options["stream"] = 1, "true" })
	r := s.holding(0, "one")
	s.Owner.Annotations = map[string]string{replica.AnnotationRefresh: "1"}
	r.Job = nil
	r.goes(s.requirePlan("create job v-a-0").Actions[0], s.Now, "", "")
	require.Nil(t, r.Job.Spec.Template.Spec.Containers[0].ReadinessProbe)
	r.Pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}}
	r.Report = &protocol.Status{State: protocol.StateFetching, FilesDone: 1, FilesTotal: 2}
	out := s.requirePlan()
	require.Equal(t, flexlvmv1.ReplicaComplete, out.Status.Nodes[0].State)
	require.EqualValues(t, 1, out.Status.ReadyReplicas)
}

// plan2 returns the outcome of a plan, which must have actions.
func (s *stage) plan2(t *testing.T) Outcome {
	t.Helper()
	_, out := s.plan()
	require.NotEmpty(t, out.Actions)
	return out
}

// A failed refresh, for example for lack of room, keeps the version before, and stays in the status until a
// later refresh succeeds.
func TestRefreshThatFails(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas, v.Options["refresh"] = 1, "10m" })
	r := s.holding(0, "one")
	r.Job = nil
	out := s.requirePlan("create job v-a-0")
	require.True(t, out.Refreshes)
	r.goes(out.Actions[0], s.Now, batchv1.JobFailed, `{"state":"failed","message":"no room: 5.0 GiB more are needed"}`)
	out = s.requirePlan()
	const want = "its last refresh failed: no room: 5.0 GiB more are needed"
	require.Equal(t, want, out.Status.Nodes[0].Message)
	require.Equal(t, flexlvmv1.ReplicaComplete, out.Status.Nodes[0].State)
	require.Equal(t, "one", out.Status.Nodes[0].Version)
	require.EqualValues(t, 1, out.Loaded)
	require.False(t, out.Failed)
	status := statusOf(s.Owner, []Outcome{out}, false)
	c := meta.FindStatusCondition(status.Conditions, flexlvmv1.ConditionRefreshed)
	require.Equal(t, metav1.ConditionFalse, c.Status)
	require.Equal(t, "a: claim v-a-0 on node node-0: no room: 5.0 GiB more are needed", c.Message)
	require.Equal(t, flexlvmv1.StateRunning, status.State)
	notes := eventsOf(s.before(), out.Status)
	require.Len(t, notes, 1)
	require.Equal(t, "RefreshFailed", notes[0].reason)
	require.Contains(t, notes[0].message, "keeps version one: no room")
	s.recorded(out)

	s.Now = s.Now.Add(10 * time.Minute)
	require.Equal(t, want, s.requirePlan("delete job v-a-0").Status.Nodes[0].Message)
	r.Job = nil
	out = s.requirePlan("create job v-a-0")
	require.Equal(t, want, out.Status.Nodes[0].Message, "it is so until there is better news")
	require.Len(t, out.Stale, 1)
	r.goes(out.Actions[0], s.Now, batchv1.JobComplete, `{"state":"complete","contents":"two"}`)
	out = s.plan2(t)
	require.Empty(t, out.Status.Nodes[0].Message)
	require.Empty(t, out.Stale)

	// A scheduled refresh that finds nothing new sends no event.
	accept(t, out)
	s.recorded(s.requirePlan())
	s.Now = s.Now.Add(10 * time.Minute)
	r.Job = nil
	out = s.requirePlan("create job v-a-0")
	r.goes(out.Actions[0], s.Now, batchv1.JobComplete, `{"state":"complete","contents":"two"}`)
	require.Empty(t, s.plan2(t).Actions[0].Reason)
}

// A failed refresh on demand is not retried until somebody asks for another.
func TestRefreshOnDemandThatFails(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas = 1 })
	r := s.holding(0, "one")
	s.Owner.Annotations = map[string]string{replica.AnnotationRefresh: "1"}
	r.Job = nil
	r.goes(s.requirePlan("create job v-a-0").Actions[0], s.Now, batchv1.JobFailed, `{"state":"failed","message":"no such bucket"}`)
	s.Now = s.Now.Add(24 * time.Hour)
	s.requirePlan()
	s.Owner.Annotations[replica.AnnotationRefresh] = "2"
	s.requirePlan("delete job v-a-0")
}

// A load that began after a refresh was asked for satisfies that request.
func TestRefreshThatALoadHasBroughtAlready(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas = 1 })
	s.Owner.Annotations = map[string]string{replica.AnnotationRefresh: "1"}
	r := s.claimed(0)
	job := s.requirePlan("create job v-a-0").Actions[0]
	r.goes(job, s.Now, batchv1.JobComplete, `{"state":"complete","contents":"one"}`)
	out := s.requirePlan("annotate claim v-a-0")
	require.Equal(t, s.refreshRequest(), out.Actions[0].Annotations[annotationRefreshed])
	accept(t, out)
	r.Volume.Annotations[replica.AnnotationComplete] = replica.Complete
	s.Labelled = []string{"node-0"}
	s.requirePlan()
}

// At most a tenth of the replicas are refreshed at the same time.
func TestRefreshOfManyNodes(t *testing.T) {
	const nodes = 30
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas, v.Options["refresh"] = nodes, "1h" })
	s.Fitting = fitting(nodes)
	for i := range nodes {
		s.holding(i, "one").Job = nil
	}
	s.requirePlan("create job v-a-0", "create job v-a-1", "create job v-a-2")
}

// A node that accepts no loader, or is down, does not delay the refreshes of other nodes, and the status
// reports what its own refresh waits for.
func TestRefreshPassesANodeThatTakesNoLoader(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*Replica)
		message string
	}{
		"cordoned": {func(r *Replica) {
			r.Pod.Spec.NodeName, r.Pod.Status.Phase = "", corev1.PodPending
			r.Pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "1 node(s) were unschedulable."}}
		}, "its loader cannot be scheduled: 1 node(s) were unschedulable."},
		"down": {func(r *Replica) { r.NodeNotReady = true }, "its loader's pod on node node-0 does not respond; it waits for the node"},
		"down for long": {func(r *Replica) { r.Pod.DeletionTimestamp = &metav1.Time{Time: now} },
			"its loader's pod on node node-0 does not respond; it waits for the node"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas, v.Options["refresh"] = 3, "10m" })
			for i := range 3 {
				s.holding(i, "one").Job = nil
			}
			r := s.Replicas[0]
			r.goes(s.requirePlan("create job v-a-0").Actions[0], s.Now, "", "")
			r.Pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now)}, Spec: corev1.PodSpec{NodeName: "node-0"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
			require.Empty(t, s.requirePlan().Status.Nodes[0].Message)
			c.change(r)
			s.Now = now.Add(beforeDisplacing)
			out := s.requirePlan("create job v-a-1")
			require.Equal(t, c.message, out.Status.Nodes[0].Message)
			require.Equal(t, flexlvmv1.ReplicaComplete, out.Status.Nodes[0].State, "pods go on to read what it has")
			require.EqualValues(t, 3, out.Loaded)
			s.Replicas[1].goes(out.Actions[0], s.Now, "", "")
			s.requirePlan() // of the nodes that accept a loader, one at a time
		})
	}
}

// The status reports what a visit waits for after the purpose of the visit. It keeps the message of a failed
// refresh unchanged, because that is recorded nowhere else.
func TestVisitThatWaits(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas, v.Options["refresh"] = 1, "10m" })
	r := s.holding(0, "one")
	r.Job = nil
	r.goes(s.requirePlan("create job v-a-0").Actions[0], s.Now, "", "")
	r.Pod, r.Refused = nil, "exceeded quota"
	require.Equal(t, "its loader's pod is refused: exceeded quota", s.requirePlan().Status.Nodes[0].Message)
	r.Claim.Status.Capacity[corev1.ResourceStorage] = resource.MustParse("512Mi")
	require.Equal(t, "grows from 512Mi to 1Gi; its loader's pod is refused: exceeded quota", s.requirePlan().Status.Nodes[0].Message)
	r.Claim.Status.Capacity[corev1.ResourceStorage] = s.Source.Capacity
	out := s.requirePlan()
	out.Status.Nodes[0].Message = refreshFailed + "no such bucket"
	s.recorded(out)
	out = s.requirePlan()
	require.Equal(t, refreshFailed+"no such bucket", out.Status.Nodes[0].Message)
	require.Len(t, out.Stale, 1)
}

func TestVersionsInTheSummary(t *testing.T) {
	require.Empty(t, versionsOf(nil))
	require.Equal(t, "a", versionsOf(map[string]int32{"a": 7}))
	require.Equal(t, "a (7),b (1)", versionsOf(map[string]int32{"a": 7, "b": 1}))
	require.Equal(t, "a (1),b (1),c (1),d (1),and 2 more", versionsOf(map[string]int32{"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1}))
}

// A copy counts as refreshed only if the replicas that it is copied from were.
func TestRefreshOfACopyOfTheVersionBefore(t *testing.T) {
	s := newRack(t, 2)
	s.peerServer(0)
	r := s.claimed(1)
	s.Owner.Annotations = map[string]string{replica.AnnotationRefresh: "1"}
	out := s.requirePlan("create job v-a-1")
	require.True(t, copies(created(out)))
	r.goes(out.Actions[0], s.Now, batchv1.JobComplete, indexed)
	out = s.plan2(t)
	require.Equal(t, "v-a-1", out.Actions[0].Object.GetName())
	require.Empty(t, out.Actions[0].Annotations[annotationRefreshed], "the other replica was not refreshed yet")
	require.NotContains(t, out.Actions[0].Annotations, annotationRefreshedAt, "it has not asked the source")
	accept(t, Outcome{Actions: out.Actions[:1]})
	require.True(t, (&planner{Observed: s.Observed}).visitOf(r).refresh(), "it is refreshed itself")

	// A copy of a replica that was already refreshed satisfies the request.
	s = newRack(t, 2)
	s.Owner.Annotations = map[string]string{replica.AnnotationRefresh: "1"}
	s.peerServer(0).Claim.Annotations[annotationRefreshed] = s.refreshRequest()
	r = s.claimed(1)
	r.goes(s.requirePlan("create job v-a-1").Actions[0], s.Now, batchv1.JobComplete, indexed)
	require.Equal(t, s.refreshRequest(), s.plan2(t).Actions[0].Annotations[annotationRefreshed])
}

// Refreshes ask the source like loads, so sourceLoaders bounds the sum of both.
func TestRefreshIsBoundedBySourceLoaders(t *testing.T) {
	const nodes = 40
	newNodes := func(options ...string) *stage {
		s := newRack(t, nodes, options...)
		for i := range nodes {
			s.holding(i, "one").Job = nil
		}
		s.Owner.Annotations = map[string]string{replica.AnnotationRefresh: "1"}
		return s
	}
	s := newNodes()
	out := s.requirePlan("create job v-a-0")
	s.Replicas[0].goes(out.Actions[0], s.Now, "", "")
	s.requirePlan()
	// No refresh begins while a load asks the source.
	s.Replicas[0].Job, s.Replicas[0].Pod = nil, nil
	s.Labelled = s.Labelled[:nodes-1]
	s.loading(nodes-1, corev1.PodRunning)
	s.requirePlan()
	// No load begins while a refresh asks the source.
	s = newNodes()
	s.Replicas[0].goes(s.requirePlan("create job v-a-0").Actions[0], s.Now, "", "")
	s.Labelled = s.Labelled[:nodes-1]
	s.claimed(nodes - 1)
	got, out := s.plan()
	require.Empty(t, got)
	require.Contains(t, out.Status.Nodes[nodes-1].Message, "waits for its turn: 1 of its dataset's loaders ask the source")
	newNodes("sourceLoaders", "2").requirePlan("create job v-a-0", "create job v-a-1")
	newNodes("sourceLoaders", "9").requirePlan("create job v-a-0", "create job v-a-1", "create job v-a-2", "create job v-a-3")
}
