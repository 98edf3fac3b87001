package dataset

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// A displaced replica is remembered whatever its number, and no more replicas of a dataset are displaced than
// its status can list.
func TestDisplacedAmongMany(t *testing.T) {
	const many, last = 70, 69
	s := newAll(t, func(v *flexlvmv1.VolumeConfig) { v.Options["displaceable"] = "true" })
	s.ConsumersByNode, s.Fitting = map[string][]string{}, fitting(many)
	for i := range many {
		s.completed(i).Claim.Annotations[annotationDisplaceable] = "true"
	}
	asked := func(index int) {
		a := s.Replicas[index].Claim.Annotations
		a[annotationDisplacedBy], a[annotationDisplacing] = "other/w/b", "2026-11-21T15:00:00Z"
		s.Labelled = slices.DeleteFunc(s.Labelled, func(node string) bool { return node == s.Replicas[index].Node })
	}
	asked(last)
	require.Len(t, s.remember().Status.Nodes, maxReplicas)
	s.requirePlan("delete job v-a-69", "delete claim v-a-69")
	delete(s.Replicas, last)
	out := s.remember()
	require.Equal(t, "v-a-69", out.Status.Nodes[maxReplicas-1].Claim)
	s.requirePlan()

	for i := range maxReplicas {
		asked(i)
	}
	out = s.remember()
	require.EqualValues(t, maxReplicas, out.Status.States[flexlvmv1.ReplicaDisplaced])
	require.Equal(t, "v-a-69", out.Status.Nodes[maxReplicas-1].Claim, "it is not forgotten for another")
	_, out = s.plan()
	withdrawn := out.Actions[slices.IndexFunc(out.Actions, func(a Action) bool { return a.Verb == Annotate })]
	require.Equal(t, "v-a-49", withdrawn.Object.GetName(), "there is no room to remember it")
	require.Equal(t, map[string]string{annotationDisplacedBy: "", annotationDisplacing: ""}, withdrawn.Annotations)
	require.False(t, slices.ContainsFunc(out.Actions, func(a Action) bool { return a.Verb == Delete && a.Object.GetName() == "v-a-49" }))
	require.True(t, slices.ContainsFunc(out.Actions, func(a Action) bool { return a.Verb == Delete && a.Object.GetName() == "v-a-48" }))
}

// A failed refresh is recorded only in the message of its replica, which must not be lost among many replicas.
func TestStaleAmongMany(t *testing.T) {
	const many, last = 70, 69
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas, v.Options["refresh"] = many, "10m" })
	s.Fitting = fitting(many)
	for i := range many {
		s.holding(i, "one").Claim.Annotations[annotationRefreshedAt] = now.UTC().Format(time.RFC3339)
	}
	r := s.Replicas[last]
	r.goes(Action{Object: s.task(last, r.Claim).visit(true)}, s.Now, batchv1.JobFailed, `{"state":"failed","message":"no such bucket"}`)
	require.Len(t, s.remember().Stale, 1)
	r.Job, r.Pod = nil, nil // the next refresh has not started
	out := s.remember()
	require.Equal(t, []string{"claim v-a-69 on node node-69: no such bucket"}, out.Stale)
	require.Equal(t, out.Stale, s.remember().Stale)
}

// The status of thousands of replicas fits into one object, and still records every failed load, so that none
// is repeated.
func TestStatusIsBounded(t *testing.T) {
	const many = 5000
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas = many })
	s.Fitting = fitting(many)
	out := Plan(s.Observed)
	require.Len(t, out.Actions, many)
	require.Len(t, out.Status.Nodes, 50)
	require.Equal(t, map[flexlvmv1.ReplicaState]int32{flexlvmv1.ReplicaWaiting: many}, out.Status.States)
	status := statusOf(s.Owner, []Outcome{out}, false)
	text, err := json.Marshal(status)
	require.NoError(t, err)
	require.Less(t, len(text), 64<<10)
	condition := status.Conditions[len(status.Conditions)-1]
	require.Equal(t, flexlvmv1.ConditionTruncated, condition.Type)
	require.Equal(t, "50 of the replicas of a are listed by name; states counts all of them", condition.Message)

	failed := []int{4949, 4950, 4951, 4953, 4999}
	for index := range maxReplicas {
		failed = append(failed, 100+index) // these are listed by name
	}
	for _, index := range failed {
		s.ended(index, batchv1.JobFailed, `{"state":"failed","message":"access denied"}`)
	}
	out = Plan(s.Observed)
	require.Equal(t, "4949-4951,4953,4999", out.Status.Failures[0].Replicas)
	require.Equal(t, "v-a-100", out.Status.Nodes[0].Claim)
	require.EqualValues(t, len(failed), out.Status.States[flexlvmv1.ReplicaFailed])
	require.Contains(t, out.Status.Message, "access denied")
	s.recorded(out)
	s.Replicas = map[int]*Replica{}
	again := Plan(s.Observed)
	require.Len(t, again.Actions, many-len(failed), "what failed is not loaded again")
	require.Equal(t, out.Status.Failures, again.Status.Failures)
	for _, a := range again.Actions {
		require.NotEqual(t, fmt.Sprintf("v-a-%d", 4999), a.Object.GetName())
	}
	require.True(t, inRanges("1-3,7", 2) && inRanges("1-3,7", 7))
	require.False(t, inRanges("1-3,7", 4) || inRanges("", 0))
	require.Equal(t, "1-3,7", ranges([]int{1, 2, 3, 7}))
}
