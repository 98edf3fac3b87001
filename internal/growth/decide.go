package growth

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// nodeErrorGrace is how long kubelet may fail to grow a volume before the growth is taken back: the
// node may lack free room on just the volume's devices, and a starting pod must not wait for that.
// lackGrace is how long a pool may seem to hold less than is promised in it: while another volume is
// being released, its space is not allocatable and cannot be evicted yet. regrowFirst is the first
// retry delay after that, and regrowAfter the longest: it exceeds keptTime, for which the ledger
// reserves the room of a growth that was taken back, so that other claims get that room in between.
const (
	nodeErrorGrace = 30 * time.Second
	lackGrace      = 30 * time.Second
	regrowFirst    = 30 * time.Second
	regrowAfter    = 10 * time.Minute
)

// A scene is the input of one decision.
type scene struct {
	claim  *corev1.PersistentVolumeClaim
	object *corev1.PersistentVolume
	now    time.Time
	since  time.Time // since when it asks
	// lacks is since when the pool holds less than is promised in it; zero if it holds enough.
	lacks  time.Time
	lately bool // the claim was recently told of this growth
	// notBefore is when the node may be asked again to grow the volume.
	notBefore time.Time
}

// A step is one write to the API.
type step struct {
	what string // for errors and logs
	// capacity and growing are written to the PersistentVolume; nil leaves the field unchanged. An
	// empty growing removes the annotation.
	capacity *resource.Quantity
	growing  *string
	before   *resource.Quantity // AnnotationPreResizeCapacity; zero removes it
	status   *status            // of the claim, after the step
}

// A plan is what to do about one claim.
type plan struct {
	steps []step
	// answer is reported to the claim, unless nil.
	answer *ledger.Answer
	// takenBack: the growth was undone, because the node failed or was promised too much.
	takenBack bool
	again     time.Time // when to process the claim again; zero: after a change
}

// granted reports whether a plan has granted a growth, judging by the current PersistentVolume.
func (p plan) granted(claim *corev1.PersistentVolumeClaim, object *corev1.PersistentVolume) bool {
	wish, has := asked(claim), capacity(object)
	return p.answer != nil && p.answer.Outcome == ledger.Granted && has.Cmp(wish) >= 0
}

// boundTo reports whether a claim and one of flexlvm's PersistentVolumes are bound to each other.
func boundTo(claim *corev1.PersistentVolumeClaim, object *corev1.PersistentVolume) bool {
	ref := object.Spec.ClaimRef
	return ref != nil && ref.UID == claim.UID && claim.Spec.VolumeName == object.Name &&
		persistentvolume.IsOurs(object) && object.Labels[pv.LabelNode] != "" && object.Status.Phase == corev1.VolumeBound
}

// wanting reports whether there may be something to do for a claim.
func wanting(claim *corev1.PersistentVolumeClaim, object *corev1.PersistentVolume) bool {
	if !boundTo(claim, object) {
		return false
	}
	ask, own := asked(claim), has(claim)
	return ask.Cmp(own) > 0 || object.Annotations[pv.AnnotationGrowingTo] != "" || noted(object)
}

// noted reports whether flexlvm has to remove AnnotationPreResizeCapacity from a PersistentVolume.
// kube-controller-manager removes it only for FlexVolumes.
func noted(object *corev1.PersistentVolume) bool {
	return persistentvolume.DoorOf(object) == pv.CSI && object.Annotations[pv.AnnotationPreResizeCapacity] != ""
}

// decide returns what to do about a claim. It calls ask, which asks the ledger, at most once.
func decide(s scene, ask func(to volume.Bytes) ledger.Answer) plan {
	if !boundTo(s.claim, s.object) || s.claim.DeletionTimestamp != nil || s.object.DeletionTimestamp != nil {
		return plan{}
	}
	wish, own, granted := asked(s.claim), has(s.claim), capacity(s.object)
	if wish.Cmp(own) <= 0 {
		return plan{steps: s.forget(own)}
	}
	if own.IsZero() { // the claim is being bound, for example after a move to another door: nothing grows yet
		return plan{}
	}
	if granted.Cmp(own) <= 0 {
		return s.grow(ask)
	}
	broken, again := s.broken()
	switch lacks, _ := s.lacking(); {
	case broken:
		return s.takeBack(own)
	case lacks:
		return plan{again: again} // until then, nothing more is left to the node, or promised
	case wish.Cmp(granted) > 0:
		return s.growFurther(ask)
	}
	return plan{again: again, steps: append(s.drop(), s.leave(nil)...)}
}

// leave leaves a granted growth to the node; tell is the condition of a further growth.
func (s scene) leave(tell *corev1.PersistentVolumeClaimCondition) []step {
	next := forNode(s.claim, capacity(s.object), s.now, tell)
	if next.equal(statusOf(s.claim)) {
		return nil
	}
	return []step{{what: "leave the growth to the node", status: &next}}
}

// forget removes what remains of a growth that is not requested any more.
func (s scene) forget(own resource.Quantity) []step {
	out := s.drop()
	if state(s.claim) == refused {
		next := unmarked(s.claim, own)
		next.allocated = nil
		out = append(out, step{what: "end the growth", status: &next})
	}
	// Caches omit the sizes of a claim that does not grow.
	if granted := capacity(s.object); noted(s.object) && (own.IsZero() || granted.Cmp(own) <= 0) {
		out = append(out, step{what: "end what is noted of the growth", before: &resource.Quantity{}})
	}
	return out
}

// drop removes a promise that was not granted.
func (s scene) drop() []step {
	if _, promised := s.object.Annotations[pv.AnnotationGrowingTo]; !promised {
		return nil
	}
	none := ""
	return []step{{what: "end the promise", growing: &none}}
}

// broken reports whether the node cannot reach the capacity of the PersistentVolume, and otherwise
// returns when to check again. After kubelet has given up, it would retry ten times a second for as
// long as the PersistentVolume is larger than the claim.
func (s scene) broken() (bool, time.Time) {
	lacking, again := s.lacking()
	if lacking && again.IsZero() || state(s.claim) == failed {
		return true, time.Time{}
	}
	c := condition(s.claim, corev1.PersistentVolumeClaimNodeResizeError)
	if c == nil {
		return false, again
	}
	until := c.LastTransitionTime.Add(nodeErrorGrace)
	if until.Sub(s.now) > 2*nodeErrorGrace { // the node's clock is ahead, so the grace period counts as over
		return true, time.Time{}
	}
	if again.IsZero() || until.Before(again) {
		again = until
	}
	return !s.now.Before(until), again
}

// isBlock reports whether a claim is for a raw block volume.
func isBlock(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode == corev1.PersistentVolumeBlock
}

// ranOutOfTime reports whether kubelet's call has ended before the node was done. The new room of a raw
// block volume is zeroed, and the next call continues where the last one ended, so its backoff is not
// extended.
func ranOutOfTime(c *corev1.PersistentVolumeClaimCondition) bool {
	return strings.Contains(c.Message, codes.DeadlineExceeded.String())
}

// lacking reports whether the pool holds less than is promised in it, and until when that may be
// transient; zero if the grace period is over.
func (s scene) lacking() (lacks bool, until time.Time) {
	if s.lacks.IsZero() {
		return false, time.Time{}
	}
	if until = s.lacks.Add(lackGrace); s.now.Before(until) {
		return true, until
	}
	return true, time.Time{}
}

// takeBack lowers the PersistentVolume's capacity to the claim's. The claim is written first: from then
// on, pods start with the volume as it is.
func (s scene) takeBack(own resource.Quantity) plan {
	said, none, zero := capacity(s.object), "", resource.Quantity{}
	why := fmt.Sprintf("its PersistentVolume said %s, and its pool does not hold that beside what is promised to others", said.String())
	if c := condition(s.claim, corev1.PersistentVolumeClaimNodeResizeError); c != nil {
		why = fmt.Sprintf("the node could not grow it: %s", volume.Clip(c.Message, 400, "…"))
	}
	answer := ledger.Answer{Outcome: ledger.Waiting, Why: why}
	next := blocked(s.claim, s.tell(answer))
	return plan{takenBack: true, answer: &answer, steps: []step{
		{what: "take the growth back", status: &next},
		{what: "set the capacity back", capacity: &own, growing: &none, before: &zero},
	}}
}

// grow handles a claim that has its PersistentVolume's capacity, and asks for more.
func (s scene) grow(ask func(volume.Bytes) ledger.Answer) plan {
	answer := s.ask(ask)
	if answer.Outcome == ledger.Granted {
		return s.grant(answer)
	}
	if lacks, until := s.lacking(); lacks && !until.IsZero() && answer.Outcome == ledger.Waiting && s.promised() {
		return plan{again: until} // the lack may be transient
	}
	out := plan{answer: &answer, steps: s.promise(answer), again: s.notBefore}
	if next := blocked(s.claim, s.tell(answer)); !next.equal(statusOf(s.claim)) {
		out.steps = append(out.steps, step{what: "say why it does not grow", status: &next})
	}
	return out
}

// growFurther handles a claim whose granted size the node has not reached yet, and that asks for even
// more. The node may continue with the granted size meanwhile.
func (s scene) growFurther(ask func(volume.Bytes) ledger.Answer) plan {
	answer := s.ask(ask)
	if answer.Outcome == ledger.Granted {
		return s.grant(answer)
	}
	tell := s.tell(answer)
	return plan{answer: &answer, steps: append(s.promise(answer), s.leave(&tell)...), again: s.notBefore}
}

// tell returns the condition that reports the decision on the growth. A recent condition with the same
// reason stays, because its numbers change all the time.
func (s scene) tell(answer ledger.Answer) corev1.PersistentVolumeClaimCondition {
	out := tellOf(s.claim, answer, s.since)
	if c := condition(s.claim, out.Type); c != nil && s.lately && c.Reason == out.Reason {
		return *c
	}
	return out
}

func (s scene) ask(ask func(volume.Bytes) ledger.Answer) ledger.Answer {
	wish := asked(s.claim)
	if s.now.Before(s.notBefore) {
		return ledger.Answer{Outcome: ledger.Waiting, Why: fmt.Sprintf("the node could not grow it, as an event of its pod says; it is tried again at %s", s.notBefore.UTC().Format(time.RFC3339))}
	}
	if wish.CmpInt64(int64(volume.MaxSize)) > 0 { // even a quantity that overflows an integer
		return ledger.Answer{Outcome: ledger.Refused, Why: fmt.Sprintf("the most that is supported is %s", volume.MaxSize)}
	}
	return ask(volume.Bytes(wish.Value()))
}

// promised reports whether the PersistentVolume records the requested size as promised.
func (s scene) promised() bool {
	wish := asked(s.claim)
	return s.object.Annotations[pv.AnnotationGrowingTo] == strconv.FormatInt(wish.Value(), 10)
}

// promise records the promise on the PersistentVolume, or removes it if there is none.
func (s scene) promise(answer ledger.Answer) []step {
	if answer.Outcome != ledger.MakingRoom {
		return s.drop()
	}
	if s.promised() {
		return nil
	}
	wish := asked(s.claim)
	to := strconv.FormatInt(wish.Value(), 10)
	return []step{{what: "promise the growth", growing: &to}}
}

// grant raises the capacity. kube-controller-manager may have marked the claim with an earlier request,
// and would continue with that if it saw the mark together with the new capacity.
func (s scene) grant(answer ledger.Answer) plan {
	wish, own, none := asked(s.claim), has(s.claim), ""
	clean, next := unmarked(s.claim, wish), forNode(s.claim, wish, s.now, nil)
	next.state = pending
	out := plan{answer: &answer}
	if before := statusOf(s.claim); before.state != "" || before.allocated == nil || before.allocated.Cmp(wish) != 0 {
		out.steps = append(out.steps, step{what: "clear the claim", status: &clean})
	}
	out.steps = append(out.steps,
		step{what: "raise the capacity", capacity: &wish, growing: &none, before: &own},
		step{what: "leave the growth to the node", status: &next})
	return out
}
