package dataset

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/replica"
)

func occupies(name, node string, size int64, hoursAgo int) occupant {
	return occupant{claim: &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}, of: name, node: node, size: size, lastRead: now.Add(-time.Duration(hoursAgo) * time.Hour)}
}

func namesOf(of []occupant) (out []string) {
	for _, o := range of {
		out = append(out, o.of)
	}
	return out
}

func TestVictims(t *testing.T) {
	old, recent, small := occupies("old", "node-0", 50, 9), occupies("recent", "node-0", 80, 1), occupies("small", "node-0", 10, 8)
	elsewhere := occupies("elsewhere", "node-1", 200, 5)
	one := map[string]int64{"node-0": 20}
	for name, c := range map[string]struct {
		need int64
		free map[string]int64
		want []string
	}{
		"the least recently read":                 {60, one, []string{"old"}},
		"and as many as are needed":               {75, one, []string{"old", "small"}},
		"none that is not needed by the others":   {95, one, []string{"recent"}},
		"all of them":                             {160, one, []string{"old", "small", "recent"}},
		"none, if all of them do not help":        {161, one, nil},
		"none, if there is room by now":           {20, one, nil},
		"none of a node that is not for it":       {300, one, nil},
		"the node that was read longest ago":      {100, map[string]int64{"node-0": 20, "node-1": 0}, []string{"elsewhere"}},
		"none for nodes that nothing is known of": {60, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, namesOf(victims(roomRequest{c.need, c.free}, []occupant{recent, elsewhere, small, old})))
		})
	}
}

// TestVictimsProperties checks random occupants. The victims are on one node that the replica may be on, make
// enough room, and none of them could stay. If no node has room and some node can be cleared, there are
// victims. The order of the occupants makes no difference.
func TestVictimsProperties(t *testing.T) {
	for seed := range uint64(3000) {
		random := rand.New(rand.NewPCG(seed, 7))
		a := roomRequest{need: 1 + random.Int64N(100), free: map[string]int64{}}
		for n := range 1 + random.IntN(4) {
			a.free[fmt.Sprintf("node-%d", n)] = random.Int64N(60)
		}
		var all []occupant
		onNode := map[string]int64{}
		for i := range random.IntN(12) {
			o := occupies(fmt.Sprintf("o-%d", i), fmt.Sprintf("node-%d", random.IntN(5)), 1+random.Int64N(50), random.IntN(5))
			onNode[o.node] += o.size
			all = append(all, o)
		}
		got := victims(a, slices.Clone(all))
		could, fits := false, false
		for node, free := range a.free {
			could = could || onNode[node] > 0 && free < a.need && free+onNode[node] >= a.need
			fits = fits || onNode[node] > 0 && free >= a.need
		}
		require.Equal(t, could && !fits, len(got) > 0, "seed %d", seed)
		sum := int64(0)
		for _, o := range got {
			require.Equal(t, got[0].node, o.node)
			sum += o.size
		}
		for _, o := range got {
			free, may := a.free[o.node]
			require.True(t, may)
			require.GreaterOrEqual(t, free+sum, a.need, "seed %d: it does not help", seed)
			require.Less(t, free+sum-o.size, a.need, "seed %d: %s could stay", seed, o.of)
		}
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		require.Equal(t, namesOf(got), namesOf(victims(a, all)), "seed %d", seed)
	}
}

func newDisplaceable(t *testing.T) (*stage, *Replica) {
	t.Helper()
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas, v.Options["displaceable"] = 1, "true" })
	r := s.completed(0)
	s.ConsumersByNode = map[string][]string{}
	s.requirePlan("annotate claim v-a-0") // the claim records that it may be displaced
	r.Claim.Annotations[annotationDisplaceable] = "true"
	s.requirePlan()
	return s, r
}

// remember plans, and records the status of the plan.
func (s *stage) remember() Outcome {
	s.Helper()
	_, out := s.plan()
	s.Owner.Status.Volumes = []flexlvmv1.VolumeStatus{*out.Status.DeepCopy()}
	return out
}

func TestDisplacedStepByStep(t *testing.T) {
	s, r := newDisplaceable(t)
	r.Claim.Annotations[annotationDisplacedBy] = "other/w/b"
	s.requirePlan("unlabel node-0")
	s.Labelled = nil
	out := s.requirePlan("annotate claim v-a-0")
	require.Equal(t, map[string]string{annotationDisplacing: "2026-11-21T16:00:00Z"}, out.Actions[0].Annotations)
	r.Claim.Annotations[annotationDisplacing] = "2026-11-21T16:00:00Z"
	s.Now = now.Add(schedulerLags - time.Second)
	s.requirePlan() // a scheduler may still have the label
	s.Now = now.Add(schedulerLags)
	s.requirePlan() // the status records it first
	require.Equal(t, flexlvmv1.ReplicaDisplaced, s.remember().Status.Nodes[0].State)
	out = s.requirePlan("delete job v-a-0", "delete claim v-a-0")
	require.Equal(t, "ReplicaDisplaced", out.Actions[1].Reason)
	require.Equal(t, "claim v-a-0 on node-0 is released: dataset other/w/b needs its room on node node-0, and no pod reads it", out.Actions[1].Message)
	s.remember()

	// It is not loaded again while no pod wants it, and the status reports that.
	delete(s.Replicas, 0)
	s.Now = now.Add(100 * time.Hour)
	out = s.requirePlan()
	s.remember()
	require.Equal(t, flexlvmv1.ReplicaDisplaced, out.Status.Nodes[0].State)
	require.Contains(t, out.Status.Message, "v-a-0 Displaced: dataset other/w/b has used its room on node node-0 since 2026-11-21T16:00:10Z; it is loaded again as soon as a pod needs it")
	require.False(t, out.Failed)
	s.Consumers = []string{"pod"}
	out = s.requirePlan("create claim v-a-0")
	require.NotEmpty(t, out.Actions[0].Object.GetAnnotations()[annotationWasDisplaced])
}

// With replicas: All the displaced replica keeps its number and its node, which gets no other replica
// meanwhile.
func TestDisplacedFromOneOfAll(t *testing.T) {
	s := newAll(t, func(v *flexlvmv1.VolumeConfig) { v.Options["displaceable"] = "true" })
	for i := range 3 {
		s.completed(i).Claim.Annotations[annotationDisplaceable] = "true"
	}
	s.ConsumersByNode = map[string][]string{}
	s.Replicas[1].Claim.Annotations[annotationDisplacedBy], s.Replicas[1].Claim.Annotations[annotationDisplacing] = "other/w/b", "2026-11-21T15:00:00Z"
	s.Labelled = []string{"node-0", "node-2"}
	s.remember()
	s.requirePlan("delete job v-a-1", "delete claim v-a-1")
	s.remember()
	delete(s.Replicas, 1)
	out := s.requirePlan()
	require.Equal(t, flexlvmv1.ReplicaDisplaced, out.Status.Nodes[1].State)
	require.Equal(t, "node-1", out.Status.Nodes[1].Node)
	require.True(t, s.needsConsumers())
	s.Consumers = []string{"pod"}
	out = s.requirePlan("annotate claim v-a-0", "create claim v-a-1", "annotate claim v-a-2") // records when they were last read
	require.Equal(t, "node-1", out.Actions[1].Object.GetAnnotations()[annotationNode])
}

// Pods are listed only if displacing needs it, because each list is a request to the API server.
func TestPodsAreLookedForWhereItMatters(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) {
		v.Replicas, v.Options["displaceable"], v.Options["displaces"] = 1, "true", "Idle"
	})
	require.False(t, s.needsConsumers())
	r := s.pending(0, "")
	require.False(t, s.needsConsumers())
	r.Claim.Annotations[annotationWasDisplaced] = "2026-11-21T15:00:00Z"
	require.True(t, s.needsConsumers())
	r = s.completed(0)
	require.True(t, s.needsConsumers())
	s.Source.Displaceable = false
	require.False(t, s.needsConsumers())
	r.Claim.Annotations[annotationDisplacedBy] = "other/w/b"
	require.True(t, s.needsConsumers())
}

// Any reason against displacing keeps the replica, at every step but the last.
func TestNotDisplaced(t *testing.T) {
	for name, change := range map[string]func(*stage, *Replica){
		"a pod reads it, or wants to":    func(s *stage, _ *Replica) { s.Consumers = []string{"pod"} },
		"an edit":                        func(s *stage, _ *Replica) { s.Source.Displaceable = false },
		"the node's daemon is at it":     func(_ *stage, r *Replica) { r.Volume.Annotations[replica.AnnotationEvict] = "2026-11-21T16:00:00Z" },
		"nobody asked which pods use it": func(s *stage, _ *Replica) { s.ConsumersByNode = nil },
	} {
		t.Run(name, func(t *testing.T) {
			for _, since := range []string{"", "2026-11-21T15:00:00Z"} {
				s, r := newDisplaceable(t)
				r.Claim.Annotations[annotationDisplacedBy], r.Claim.Annotations[annotationDisplacing] = "other/w/b", since
				s.remember()
				change(s, r)
				_, out := s.plan()
				withdrawn := false
				for _, a := range out.Actions {
					require.NotEqual(t, Delete, a.Verb)
					_, is := a.Annotations[annotationDisplacedBy]
					withdrawn = withdrawn || is && a.Annotations[annotationDisplacedBy]+a.Annotations[annotationDisplacing] == ""
				}
				require.True(t, withdrawn, "%+v", out.Actions)
			}
		})
	}
	t.Run("its label is back", func(t *testing.T) {
		s, r := newDisplaceable(t)
		r.Claim.Annotations[annotationDisplacedBy], r.Claim.Annotations[annotationDisplacing] = "other/w/b", "2026-11-21T15:00:00Z"
		out := s.requirePlan("unlabel node-0", "annotate claim v-a-0")
		require.Equal(t, map[string]string{annotationDisplacing: ""}, out.Actions[1].Annotations) // the wait starts over
	})
}

func TestWhoMayDisplace(t *testing.T) {
	starving := func(change func(*stage, *Replica)) []int {
		s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas, v.Options["displaces"] = 1, "Idle" })
		r := s.pending(0, "")
		r.Job = s.task(0, r.Claim).load()
		r.Pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now.Add(-time.Minute))}, Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "no room"}}}}
		change(s, r)
		_, out := s.plan()
		return out.DisplaceFor
	}
	require.Equal(t, []int{0}, starving(func(*stage, *Replica) {}))
	for name, change := range map[string]func(*stage, *Replica){
		"it does not ask for it": func(s *stage, _ *Replica) { s.Source.Displaces = false },
		"it has just begun to wait": func(_ *stage, r *Replica) {
			r.Pod.CreationTimestamp = metav1.NewTime(now.Add(-beforeDisplacing + time.Second))
		},
		"the scheduler has not looked": func(_ *stage, r *Replica) { r.Pod.Status.Conditions = nil },
		"it has a node":                func(_ *stage, r *Replica) { r.Claim.Status.Phase = corev1.ClaimBound },
		"others were just asked": func(_ *stage, r *Replica) {
			r.Claim.Annotations[annotationMakesRoom] = now.Add(-time.Minute).Format(time.RFC3339)
		},
		"it was displaced, and no pod wants": func(_ *stage, r *Replica) { r.Claim.Annotations[annotationWasDisplaced] = "2026-11-21T15:00:00Z" },
	} {
		require.Empty(t, starving(change), name)
	}
	require.Equal(t, []int{0}, starving(func(s *stage, r *Replica) {
		r.Claim.Annotations[annotationWasDisplaced], s.Consumers = "2026-11-21T15:00:00Z", []string{"pod"}
	}))
}

// A world is a node with room for some of several datasets, which all displace each other.
type world struct {
	t        *testing.T
	datasets []*stage
	room     int
	moved    int // datasets that were displaced
}

// round plans each dataset once and applies the plans. wants are the datasets that a pod wants.
func (w *world) round(at time.Time, wants map[int]bool) {
	for i, s := range w.datasets {
		s.Now, s.ConsumersByNode, s.Consumers = at, map[string][]string{}, nil
		if wants[i] {
			s.Consumers = []string{"pod"}
		}
		_, out := s.plan()
		for _, a := range out.Actions {
			switch a.Verb {
			case Create:
				if claim, is := a.Object.(*corev1.PersistentVolumeClaim); is {
					r := s.pending(0, "")
					r.Claim = claim
					r.Claim.Status.Phase = corev1.ClaimPending
				}
			case Annotate:
				for key, value := range a.Annotations {
					a.Object.GetAnnotations()[key] = value
				}
			case Delete:
				if _, is := a.Object.(*corev1.PersistentVolumeClaim); is {
					require.False(w.t, wants[i], "one that a pod wants was displaced")
					delete(s.Replicas, 0)
					w.moved++
				}
			case Unlabel:
				s.Labelled = nil
			case Label:
				s.Labelled = []string{a.Node}
			}
		}
		s.remember()
		w.place(i, at, wants, out.DisplaceFor)
	}
}

// place binds the pending claim of dataset i if there is room, and otherwise asks others to make way.
func (w *world) place(i int, at time.Time, wants map[int]bool, starved []int) {
	s, used := w.datasets[i], 0
	var all []occupant
	for k, o := range w.datasets {
		r := o.Replicas[0]
		if r == nil || isPending(r.Claim) {
			continue
		}
		used++
		if r.Claim.Annotations[annotationDisplaceable] != "" && r.Claim.Annotations[annotationDisplacedBy] == "" && !wants[k] {
			all = append(all, occupant{claim: r.Claim, of: fmt.Sprint(k), node: "node-0", size: 1, lastRead: timeOf(r.Claim, annotationLastRead)})
		}
	}
	r := s.Replicas[0]
	switch {
	case r == nil || !isPending(r.Claim):
	case used < w.room:
		claim := r.Claim
		full := s.ended(0, batchv1.JobComplete, "{}")
		full.Claim, full.Node = claim, "node-0"
		full.Claim.Status.Phase, full.Claim.Annotations[replica.AnnotationComplete] = corev1.ClaimBound, s.Source.Load(0)
		full.Claim.Annotations[annotationLoaded] = `{"state":"complete"}`
	case len(starved) > 0:
		if chosen := victims(roomRequest{need: 1, free: map[string]int64{"node-0": 0}}, all); len(chosen) > 0 {
			r.Claim.Annotations[annotationMakesRoom] = at.Format(time.RFC3339)
			for _, o := range chosen {
				o.claim.GetAnnotations()[annotationDisplacedBy] = fmt.Sprint(i)
			}
		}
	}
	if r != nil && isPending(r.Claim) && r.Pod == nil {
		r.Job = s.task(0, r.Claim).load()
		r.Pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(at)}, Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}}}
	}
}

// TestNeverInACircle checks datasets that all displace each other and do not all fit. While no pod comes, each
// is displaced at most once, and then nothing changes any more. A dataset that a pod wants is loaded, and is
// not displaced while the pod wants it.
func TestNeverInACircle(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 3))
		w := &world{t: t, room: 1 + random.IntN(3)}
		for range w.room + 1 + random.IntN(3) {
			s := newStage(t, func(v *flexlvmv1.VolumeConfig) {
				v.Replicas, v.Options["displaceable"], v.Options["displaces"] = 1, "true", "Idle"
			})
			w.datasets = append(w.datasets, s)
		}
		at := now
		quiet := func() {
			before := w.moved
			for range 120 {
				at = at.Add(20 * time.Second)
				w.round(at, nil)
			}
			require.LessOrEqual(t, w.moved-before, len(w.datasets), "seed %d: in a circle", seed)
			before = w.moved
			for range 40 {
				at = at.Add(20 * time.Second)
				w.round(at, nil)
			}
			require.Equal(t, before, w.moved, "seed %d: it does not come to rest", seed)
		}
		quiet()
		require.Positive(t, w.moved, "seed %d: nothing was displaced", seed)
		for range 3 {
			wanted := random.IntN(len(w.datasets))
			for range 40 {
				at = at.Add(20 * time.Second)
				w.round(at, map[int]bool{wanted: true})
			}
			r := w.datasets[wanted].Replicas[0]
			require.True(t, r != nil && !isPending(r.Claim), "seed %d: what a pod wants does not come", seed)
			quiet()
		}
	}
}

func TestDisplacingIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*flexlvmv1.VolumeConfig)
		message string
	}{
		"what consumers write": {func(v *flexlvmv1.VolumeConfig) {
			v.SourceType, v.Options["displaceable"] = flexlvmv1.SourceS3Dev, "true"
		}, "displaceable true: what consumers write"},
		"no boolean":     {func(v *flexlvmv1.VolumeConfig) { v.Options["displaceable"] = "often" }, "error while parsing displaceable option"},
		"no such policy": {func(v *flexlvmv1.VolumeConfig) { v.Options["displaces"] = "All" }, `displaces "All" has to be Idle`},
	} {
		t.Run(name, func(t *testing.T) {
			v := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas = 1 }).Config
			c.change(&v)
			_, err := ParseSource(v)
			require.ErrorContains(t, err, c.message)
		})
	}
}
