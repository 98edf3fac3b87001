package dataset

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/replica"
)

// at plans at the given time. It returns the new status, which it also records, and the events of its change.
func (s *stage) at(moment time.Time) (flexlvmv1.VolumeStatus, []statusEvent) {
	s.Now = moment
	_, out := s.plan()
	notes := eventsOf(s.before(), out.Status)
	s.Owner.Status.Volumes = []flexlvmv1.VolumeStatus{*out.Status.DeepCopy()}
	return out.Status, notes
}

func TestLoadThatStallsAndGoesOn(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas = 1 })
	r := s.loading(0, corev1.PodRunning)
	r.Report = &protocol.Status{State: protocol.StateFetching, FilesDone: 1, FilesTotal: 4, BytesDone: 10, BytesTotal: 40, BytesPerSecond: 5, ETASeconds: 6}
	got, notes := s.at(now)
	require.Equal(t, []statusEvent{{corev1.EventTypeNormal, "LoadStarted", "claim v-a-0 on node-0 is being loaded"}}, notes)
	require.EqualValues(t, 5, got.Progress.BytesPerSecond)
	require.EqualValues(t, 6, got.Progress.SecondsLeft)
	require.Equal(t, "6s", summarize([]Outcome{{Status: got}}).TimeLeft)
	require.Equal(t, now, got.Nodes[0].Progress.Changed.Time)

	// Nothing arrives, whether the loader answers or not. At first there is no event.
	_, notes = s.at(now.Add(3 * time.Minute))
	require.Empty(t, notes)
	r.Report = nil
	got, notes = s.at(now.Add(stalls - time.Second))
	require.Empty(t, notes)
	require.Nil(t, got.Nodes[0].StalledSince)
	got, notes = s.at(now.Add(stalls))
	require.Equal(t, []statusEvent{{corev1.EventTypeWarning, "LoadStalled", "claim v-a-0 on node-0: nothing has arrived since 2026-11-21T16:00:00Z"}}, notes)
	require.Equal(t, now, got.Nodes[0].StalledSince.Time)
	require.Empty(t, summarize([]Outcome{{Status: got}}).TimeLeft)
	require.Contains(t, got.Message, "nothing has arrived since")
	// The event is sent once.
	got, notes = s.at(now.Add(time.Hour))
	require.Empty(t, notes)
	require.Equal(t, "nothing has arrived since 2026-11-21T16:00:00Z", got.Nodes[0].Message)

	r.Report = &protocol.Status{State: protocol.StateFetching, FilesDone: 1, FilesTotal: 4, BytesDone: 11, BytesTotal: 40}
	got, notes = s.at(now.Add(2 * time.Hour))
	require.Equal(t, []statusEvent{{corev1.EventTypeNormal, "LoadResumed", "claim v-a-0 on node-0 resumed, after nothing had arrived since 2026-11-21T16:00:00Z"}}, notes)
	require.Nil(t, got.Nodes[0].StalledSince)
	require.Empty(t, got.Nodes[0].Message)
}

// The same for a loader that fetches another version. The replica serves meanwhile.
func TestRefreshThatStallsAndGoesOn(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas = 1 })
	r := s.holding(0, "one")
	r.Job = nil
	s.Owner.Annotations = map[string]string{replica.AnnotationRefresh: "1"}
	r.goes(s.requirePlan("create job v-a-0").Actions[0], s.Now, "", "")
	r.Pod = &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	r.Report = &protocol.Status{State: protocol.StateFetching, FilesDone: 1, FilesTotal: 4, BytesDone: 10, BytesTotal: 40, BytesPerSecond: 5}
	_, notes := s.at(now)
	require.Equal(t, []statusEvent{{corev1.EventTypeNormal, "RefreshStarted", "claim v-a-0 on node-0: another version is being loaded beside one"}}, notes)
	r.Report = nil
	got, notes := s.at(now.Add(stalls - time.Second))
	require.Empty(t, notes)
	require.EqualValues(t, 10, got.Nodes[0].Refresh.Bytes, "it does not answer")
	require.EqualValues(t, 5, loading(got.Nodes[0]).BytesPerSecond)
	got, notes = s.at(now.Add(stalls))
	require.Equal(t, []statusEvent{{corev1.EventTypeWarning, "RefreshStalled", "claim v-a-0 on node-0: nothing has arrived since 2026-11-21T16:00:00Z"}}, notes)
	require.Equal(t, now, got.Nodes[0].StalledSince.Time)
	require.Zero(t, loading(got.Nodes[0]).BytesPerSecond)
	require.Equal(t, flexlvmv1.ReplicaComplete, got.Nodes[0].State)
	require.EqualValues(t, 1, got.ReadyReplicas)
	r.Report = &protocol.Status{State: protocol.StateFetching, FilesDone: 1, FilesTotal: 4, BytesDone: 11, BytesTotal: 40}
	got, notes = s.at(now.Add(time.Hour))
	require.Equal(t, []statusEvent{{corev1.EventTypeNormal, "RefreshResumed", "claim v-a-0 on node-0 resumed, after nothing had arrived since 2026-11-21T16:00:00Z"}}, notes)
	require.Nil(t, got.Nodes[0].StalledSince)
	r.Pod, r.Report = nil, nil
	got, _ = s.at(now.Add(2 * time.Hour))
	require.Nil(t, loading(got.Nodes[0]), "its pod is gone")
}

// A pod that waits for a node, for its image or for a retry is not stalled: its own message reports what it
// waits for.
func TestWhatWaitsIsNotStalled(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas = 1 })
	s.loading(0, corev1.PodPending)
	for _, after := range []time.Duration{0, stalls, time.Hour} {
		got, notes := s.at(now.Add(after))
		require.Empty(t, notes)
		require.Nil(t, got.Nodes[0].StalledSince)
		require.Nil(t, got.Nodes[0].Progress)
	}
}

func TestTimeToReady(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas = 1 })
	r := s.ended(0, "Complete", `{"state":"complete","filesDone":3,"filesTotal":3,"bytesDone":30,"bytesTotal":30,"bytesPerSecond":7,"etaSeconds":9}`)
	r.Claim.CreationTimestamp = metav1.NewTime(now.Add(-90 * time.Second))
	out := s.requirePlan("annotate claim v-a-0")
	require.Equal(t, "claim v-a-0 on node-0 is complete: 3 files, 30 bytes, 1m30s after it was created", out.Actions[0].Message)
	for key, value := range out.Actions[0].Annotations {
		r.Claim.Annotations[key] = value
	}
	_, out = s.plan()
	require.Equal(t, 90*time.Second, out.Status.Nodes[0].TimeToReady.Duration)
	require.Zero(t, out.Status.Progress.SecondsLeft)
	require.Zero(t, out.Status.Progress.BytesPerSecond)
	r.Claim.Annotations[annotationTook] = "a while"
	_, out = s.plan()
	require.Nil(t, out.Status.Nodes[0].TimeToReady)
}

func TestTimeLeftIsBounded(t *testing.T) {
	require.Equal(t, "2m30s", timeLeft(150))
	require.Equal(t, timeLeft(1<<62), timeLeft(int64(maxTimeLeft/time.Second)))
	require.Empty(t, timeLeft(-1))
}
