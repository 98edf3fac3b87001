package dataset

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// fitting returns nodes that may have replicas: node-0 and so on.
func fitting(count int) map[string]bool {
	out := map[string]bool{}
	for i := range count {
		out[fmt.Sprintf("node-%d", i)] = true
	}
	return out
}

// newAll returns a stage that wants a replica on each of three nodes.
func newAll(t *testing.T, changes ...func(*flexlvmv1.VolumeConfig)) *stage {
	t.Helper()
	return newStage(t, append([]func(*flexlvmv1.VolumeConfig){func(v *flexlvmv1.VolumeConfig) { v.Replicas = flexlvmv1.AllNodes }}, changes...)...)
}

// pending adds a replica for a node; its claim has no volume yet.
func (s *stage) pending(index int, node string) *Replica {
	r := &Replica{Claim: replicaClaim(s.Owner, s.Config, s.Source, index, node)}
	r.Claim.Status.Phase = corev1.ClaimPending
	s.Replicas[index] = r
	return r
}

func TestAllBegins(t *testing.T) {
	s := newAll(t)
	out := s.requirePlan("create claim v-a-0", "create claim v-a-1", "create claim v-a-2")
	require.EqualValues(t, 3, out.Status.Replicas)
	require.False(t, out.Failed)
	for i, a := range out.Actions {
		require.Equal(t, fmt.Sprintf("node-%d", i), a.Object.GetAnnotations()[annotationNode])
		require.Equal(t, fmt.Sprintf("node-%d", i), out.Status.Nodes[i].Node)
	}
	// No matching node is not a failure: the first one that appears gets a replica.
	s.Fitting = nil
	out = s.requirePlan()
	require.False(t, out.Failed)
	require.Equal(t, "no node matches nodeAffinity and tolerations; the first that does gets a replica", out.Status.Message)
}

func TestLoaderGoesToItsNodeAlone(t *testing.T) {
	s := newAll(t, func(v *flexlvmv1.VolumeConfig) {
		v.NodeAffinity = requiredAffinity(labelExists("gpu"))
		terms := v.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		terms.NodeSelectorTerms = append(terms.NodeSelectorTerms, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{labelExists("tpu")}})
	})
	r := s.pending(0, "node-1")
	terms := s.task(0, r.Claim).load().Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	require.Len(t, terms, 2)
	for i, label := range []string{"gpu", "tpu"} {
		require.Equal(t, []corev1.NodeSelectorRequirement{labelExists(label), labelDoesNotExist(s.label())}, terms[i].MatchExpressions)
		require.Equal(t, []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"node-1"}}}, terms[i].MatchFields)
	}
	require.Empty(t, s.Config.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields)
}

func TestAllAsNodesComeAndGo(t *testing.T) {
	s := newAll(t)
	for i := range 3 {
		s.completed(i)
	}
	out := s.requirePlan()
	require.Equal(t, flexlvmv1.MessageSuccess, out.Status.Message)
	require.EqualValues(t, 3, out.Loaded)

	// A node joins.
	s.Fitting["node-9"] = true
	out = s.requirePlan("create claim v-a-3")
	require.Equal(t, "node-9", out.Actions[0].Object.GetAnnotations()[annotationNode])
	require.Equal(t, "1 of 4 nodes Waiting; v-a-3 on node node-9: its claim is being created", out.Status.Message)

	// It has no room: the status names the node and quotes the scheduler.
	r := s.pending(3, "node-9")
	r.Job = s.task(3, r.Claim).load()
	r.Pod = &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "node(s) did not have enough free storage"}}}}
	out = s.requirePlan()
	require.Equal(t, "1 of 4 nodes Waiting; v-a-3 on node node-9: its loader cannot be scheduled: node(s) did not have enough free storage", out.Status.Message)
	require.False(t, out.Failed)

	require.Equal(t, "node-0,node-1,node-2", summarize([]Outcome{out}).Nodes, "it holds no data")

	// It leaves again: its claim is deleted, as it holds no data.
	delete(s.Fitting, "node-9")
	out = s.requirePlan("delete job v-a-3", "delete claim v-a-3")
	require.EqualValues(t, 3, out.Status.Replicas)
	require.Contains(t, out.Actions[1].Message, "node node-9 is no longer among the nodes that need a replica")
	delete(s.Replicas, 3)

	// A replica whose node is gone from the API no longer counts. Its claim stays until the rules for lost
	// nodes release it.
	delete(s.Fitting, "node-0")
	s.Replicas[0].Node, s.Labelled = "", []string{"node-1", "node-2"}
	out = s.requirePlan()
	require.EqualValues(t, 2, out.Status.Replicas)
	require.EqualValues(t, 2, out.Loaded)
	require.Equal(t, flexlvmv1.MessageSuccess, out.Status.Message)
	delete(s.Replicas, 0)
	s.requirePlan()
}

// A node that stops matching keeps its replica for the grace period, and while pods read it.
func TestAllWhereNodesStopMatching(t *testing.T) {
	s := newAll(t, func(v *flexlvmv1.VolumeConfig) {
		v.NodeAffinity, v.Options["nodeAffinityGrace"] = requiredAffinity(labelExists("gpu")), "2h"
	})
	for i := range 3 {
		s.completed(i)
	}
	delete(s.Fitting, "node-1")
	s.NotMatching["node-1"] = true
	s.Matching = map[string]bool{"node-0": true, "node-2": true}
	out := s.requirePlan("annotate claim v-a-1")
	require.EqualValues(t, 3, out.Status.Replicas)
	s.Replicas[1].Claim.Annotations[annotationUnmatched] = now.Add(-3 * time.Hour).UTC().Format(time.RFC3339)
	s.ConsumersByNode = map[string][]string{"node-1": {"job-1"}}
	out = s.requirePlan("unlabel node-1")
	require.EqualValues(t, 2, out.Status.Replicas)
	require.Contains(t, out.Status.Nodes[1].Message, "as soon as no pod reads it")
	s.Labelled = []string{"node-0", "node-2"}
	s.requirePlan()
	s.ConsumersByNode = nil
	s.requirePlan("delete job v-a-1", "delete claim v-a-1")
	delete(s.Replicas, 1)
	out = s.requirePlan()
	require.Equal(t, flexlvmv1.MessageSuccess, out.Status.Message)
}

// A failed load stays recorded for its node, whatever nodes join, and is not retried.
func TestAllRemembersFailures(t *testing.T) {
	s := newAll(t)
	s.completed(0)
	s.completed(2)
	s.ended(1, batchv1.JobFailed, `{"message":"the disk is broken"}`)
	out := s.requirePlan()
	require.True(t, out.Failed)
	s.Owner.Status.Volumes = []flexlvmv1.VolumeStatus{out.Status}
	s.requirePlan("delete job v-a-1", "delete claim v-a-1")
	delete(s.Replicas, 1)
	s.Fitting["node-00"] = true // sorts before node-1
	out = s.requirePlan("create claim v-a-3")
	require.Equal(t, "node-00", out.Actions[0].Object.GetAnnotations()[annotationNode])
	require.Equal(t, flexlvmv1.ReplicaFailed, out.Status.Nodes[1].State)
	require.Equal(t, "node-1", out.Status.Nodes[1].Node)
	require.Equal(t, "1 of 4 nodes Failed; v-a-1 on node node-1: the disk is broken", out.Status.Message)
}

// The same for a replica that is not among the first maxReplicas.
func TestAllRemembersFailuresOfMany(t *testing.T) {
	const many, broken = 60, 55
	s := newAll(t)
	s.Fitting = fitting(many)
	for i := range many {
		s.completed(i)
	}
	s.Labelled = slices.DeleteFunc(s.Labelled, func(node string) bool { return node == "node-55" })
	s.ended(broken, batchv1.JobFailed, `{"message":"the disk is broken"}`)
	s.remember()
	s.requirePlan("delete job v-a-55", "delete claim v-a-55")
	s.remember()
	delete(s.Replicas, broken)
	s.Fitting["node-00"] = true // sorts before node-1
	out := s.requirePlan("create claim v-a-60")
	require.Equal(t, "node-00", out.Actions[0].Object.GetAnnotations()[annotationNode])
	require.EqualValues(t, 1, out.Status.States[flexlvmv1.ReplicaFailed])
	at := slices.IndexFunc(out.Status.Nodes, func(r flexlvmv1.ReplicaStatus) bool { return r.State == flexlvmv1.ReplicaFailed })
	require.Equal(t, "node-55", out.Status.Nodes[at].Node)
}

func TestAllAndNumbers(t *testing.T) {
	t.Run("to All", func(t *testing.T) {
		s := newAll(t)
		s.completed(0)
		waits := s.pending(1, "")
		s.requirePlan("delete claim v-a-1", "create claim v-a-2", "create claim v-a-3")
		// While the node of a bound replica is unknown, no node counts as having none.
		waits.Claim.Status.Phase = corev1.ClaimBound
		got, _ := s.plan()
		require.NotContains(t, got, "create claim v-a-2")
	})
	t.Run("to a number", func(t *testing.T) {
		s := newStage(t)
		s.completed(0)
		s.Replicas[0].Claim.Annotations[annotationNode] = "node-0"
		s.pending(1, "node-1")
		s.requirePlan("delete claim v-a-1") // it waits for that node alone
		s.completed(3)
		s.Labelled = []string{"node-0"}
		s.requirePlan("delete claim v-a-1", "delete job v-a-3", "delete claim v-a-3")
	})
}

func TestAllIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*flexlvmv1.VolumeConfig)
		message string
	}{
		"shares": {func(v *flexlvmv1.VolumeConfig) {
			v.SourceType, v.Options = flexlvmv1.SourceNFS, map[string]flexlvmv1.OptionValue{"server": "s", "path": "/p"}
		}, "replicas All with sourceType NFS"},
		"what is written": {func(v *flexlvmv1.VolumeConfig) { v.SourceType = flexlvmv1.SourceS3Dev }, "replicas All with sourceType S3-Dev"},
		"shards":          {func(v *flexlvmv1.VolumeConfig) { v.Options["distributionStrategy"] = `{"a":1}` }, `replicas All with distributionStrategy {"a":1}`},
		"resync":          {func(v *flexlvmv1.VolumeConfig) { v.Options["resync"] = "true" }, "replicas All with resync true"},
	} {
		t.Run(name, func(t *testing.T) {
			v := newAll(t).Config
			c.change(&v)
			_, err := ParseSource(v)
			require.ErrorContains(t, err, c.message)
		})
	}
	v := newAll(t).Config
	v.Options["refresh"], v.Options["resync"] = "false", "0"
	_, err := ParseSource(v)
	require.NoError(t, err)
}

// TestAllConverges simulates nodes that join, leave and stop matching, and a slow scheduler. At no time are
// there two replicas for a node, no replica on a node that may have one is deleted, and in the end each node
// that may have a replica has one.
func TestAllConverges(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 21))
		s := newAll(t)
		s.Fitting = map[string]bool{}
		play := func(quiet bool) int {
			out := Plan(s.Observed)
			nodes := map[string]bool{}
			for _, at := range assignmentsOf(s.Observed) {
				require.False(t, at.node != "" && nodes[at.node], "seed %d: two for %s", seed, at.node)
				nodes[at.node] = true
			}
			for _, a := range out.Actions {
				claim, is := a.Object.(*corev1.PersistentVolumeClaim)
				if !is {
					continue
				}
				index := s.indexOf(claim.Name)
				switch a.Verb {
				case Create:
					s.pending(index, claim.Annotations[annotationNode])
				case Delete:
					require.False(t, s.Fitting[s.Replicas[index].Node], "seed %d: one that lies on %s", seed, s.Replicas[index].Node)
					delete(s.Replicas, index)
				}
			}
			for index, r := range s.Replicas {
				if r.Claim != nil && isPending(r.Claim) && s.Fitting[r.Claim.Annotations[annotationNode]] && (quiet || random.IntN(3) == 0) {
					node := r.Claim.Annotations[annotationNode]
					s.completed(index).Node = node
					s.Replicas[index].Claim.Annotations[annotationNode] = node
				}
			}
			var at []byte
			at, err := json.Marshal(out.Status)
			require.NoError(t, err)
			s.Owner.Status.Volumes = make([]flexlvmv1.VolumeStatus, 1)
			require.NoError(t, json.Unmarshal(at, &s.Owner.Status.Volumes[0]))
			s.Labelled = nil
			return len(out.Status.Nodes)
		}
		for range 40 {
			node := fmt.Sprintf("node-%d", random.IntN(6))
			switch random.IntN(4) {
			case 0:
				s.Fitting[node] = true
			case 1: // the node is lost, and its claims are released
				delete(s.Fitting, node)
				for index, r := range s.Replicas {
					if r.Node == node {
						delete(s.Replicas, index)
					}
				}
			case 2:
				delete(s.Fitting, node) // a taint
			}
			play(false)
		}
		for range 4 {
			play(true)
		}
		has := map[string]bool{}
		for _, r := range s.Replicas {
			has[r.Node] = true
		}
		for node := range s.Fitting {
			require.True(t, has[node], "seed %d: %s has none", seed, node)
		}
	}
}
