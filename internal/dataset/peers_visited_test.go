package dataset

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/replica"
)

// A complete replica with a running loader, which may take hours or never end on a node that is down, is not
// chosen to serve while others are idle, and is waited for at most for peerServerStartTime.
func TestPeersThatAreVisited(t *testing.T) {
	for name, busy := range map[string]func(*stage, *Replica){
		"refreshed": func(s *stage, r *Replica) { r.goes(Action{Object: s.task(0, r.Claim).visit(true)}, now, "", "") },
		"grows":     func(s *stage, r *Replica) { r.goes(Action{Object: s.task(0, r.Claim).visit(false)}, now, "", "") },
		"orphan":    func(_ *stage, r *Replica) { r.Job, r.Busy = nil, true },
	} {
		t.Run(name, func(t *testing.T) {
			s := newRack(t, 4, "sourceLoaders", "2")
			for i := range 3 {
				s.indexed(i).Job = nil
			}
			s.claimed(3)
			busy(s, s.Replicas[0])
			out := s.requirePlan("create job v-a-1")
			require.Equal(t, rolePeerServer, created(out).Labels[labelRole])
			require.Contains(t, out.Status.Nodes[3].Message, "waits for a replica that it can be copied from")

			s = newRack(t, 2, "sourceLoaders", "2")
			s.indexed(0).Job = nil
			s.claimed(1)
			busy(s, s.Replicas[0])
			if job := s.Replicas[0].Job; job != nil {
				job.CreationTimestamp = metav1.NewTime(now.Add(time.Second - peerServerStartTime))
				s.requirePlan() // it may end in a moment
				job.CreationTimestamp = metav1.NewTime(now.Add(-peerServerStartTime))
			}
			require.False(t, copies(created(s.requirePlan("create job v-a-1"))))
		})
	}
	// The Job of a load that took hours is waited for while it is being deleted, for peerServerStartTime at most.
	s := newRack(t, 2)
	r := s.indexed(0)
	s.claimed(1)
	r.Job.CreationTimestamp, r.Job.DeletionTimestamp = metav1.NewTime(now.Add(-time.Hour)), &metav1.Time{Time: now.Add(-time.Second)}
	s.requirePlan()
	r.Job.DeletionTimestamp.Time = now.Add(-peerServerStartTime)
	s.requirePlan("create job v-a-1")
}

// The result of a refresh is recorded on the claim before a server replaces its Job.
func TestPeersThatWereVisited(t *testing.T) {
	s := newRack(t, 2)
	s.Owner.Annotations = map[string]string{replica.AnnotationRefresh: "1"}
	r := s.indexed(0)
	s.claimed(1)
	visit := s.task(0, r.Claim).visit(true)
	r.goes(Action{Object: visit}, now, batchv1.JobComplete, strings.Replace(indexed, "sha256:a", "sha256:b", 1))
	out := s.requirePlan("annotate claim v-a-0", "delete job v-a-0")
	require.Contains(t, out.Actions[0].Annotations[annotationLoaded], "sha256:b")
	require.NotEmpty(t, out.Actions[0].Annotations[annotationRefreshedAt])
	require.Equal(t, s.refreshRequest(), out.Actions[0].Annotations[annotationRefreshed])

	// A failed refresh stays in the status while the replica serves.
	r.goes(Action{Object: visit}, now, batchv1.JobFailed, `{"state":"failed","message":"no such bucket"}`)
	s.recorded(s.requirePlan("delete job v-a-0"))
	r.Job, r.Pod = nil, nil
	out = s.requirePlan("create job v-a-0")
	require.Equal(t, refreshFailed+"no such bucket", out.Status.Nodes[0].Message)
	require.Len(t, out.Stale, 1)
}
