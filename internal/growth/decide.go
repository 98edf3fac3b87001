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
// lackGrace is how long a pool may seem to hold less than is promised in it: its node's report and the
// PersistentVolumes may be of different moments. regrowFirst is the first retry delay after a growth was
// taken back, and regrowAfter the longest: it exceeds keptTime, for which the ledger reserves the room of
// such a growth, so that other claims get that room in between.
const (
	nodeErrorGrace = 30 * time.Second
	lackGrace      = 30 * time.Second
	regrowFirst    = 30 * time.Second
	regrowAfter    = 10 * time.Minute
)

// An input holds the data for one decision.
type input struct {
	claim  *corev1.PersistentVolumeClaim
	object *corev1.PersistentVolume
	now    time.Time
	since  time.Time // since when it asks
	// lacks is since when the pool holds less than is promised in it; zero if it holds enough.
	lacks            time.Time
	reportedRecently bool // this growth was recently reported to the claim
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
	requested, has := asked(claim), capacity(object)
	return p.answer != nil && p.answer.Outcome == ledger.Granted && has.Cmp(requested) >= 0
}

// isGrowableBinding reports whether a claim and one of flexlvm's PersistentVolumes, which names its node, are bound to
// each other.
func isGrowableBinding(claim *corev1.PersistentVolumeClaim, object *corev1.PersistentVolume) bool {
	ref := object.Spec.ClaimRef
	return ref != nil && ref.UID == claim.UID && claim.Spec.VolumeName == object.Name &&
		persistentvolume.IsOurs(object) && object.Labels[pv.LabelNode] != "" && object.Status.Phase == corev1.VolumeBound
}

// wanting reports whether there may be something to do for a claim.
func wanting(claim *corev1.PersistentVolumeClaim, object *corev1.PersistentVolume) bool {
	if !isGrowableBinding(claim, object) {
		return false
	}
	ask, own := asked(claim), has(claim)
	return ask.Cmp(own) > 0 || object.Annotations[pv.AnnotationGrowingTo] != "" || hasPreResizeCapacity(object)
}

// hasPreResizeCapacity reports whether flexlvm has to remove AnnotationPreResizeCapacity from a PersistentVolume.
// kube-controller-manager removes it only for FlexVolumes.
func hasPreResizeCapacity(object *corev1.PersistentVolume) bool {
	return persistentvolume.DoorOf(object) == pv.CSI && object.Annotations[pv.AnnotationPreResizeCapacity] != ""
}

// decide returns what to do about a claim. It calls ask, which asks the ledger, at most once.
func decide(in input, ask func(to volume.Bytes) ledger.Answer) plan {
	if !isGrowableBinding(in.claim, in.object) || in.claim.DeletionTimestamp != nil || in.object.DeletionTimestamp != nil {
		return plan{}
	}
	requested, own, granted := asked(in.claim), has(in.claim), capacity(in.object)
	if requested.Cmp(own) <= 0 {
		return plan{steps: in.forget(own)}
	}
	if own.IsZero() { // the claim is being bound, for example after a move to another door: nothing grows yet
		return plan{}
	}
	if granted.Cmp(own) <= 0 {
		return in.grow(ask)
	}
	broken, again := in.broken()
	switch lacks, _ := in.lacking(); {
	case broken:
		return in.takeBack(own)
	case lacks:
		return plan{again: again} // until then, nothing more is left to the node, or promised
	case requested.Cmp(granted) > 0:
		return in.growFurther(ask)
	}
	return plan{again: again, steps: append(in.drop(), in.leave(nil)...)}
}

// leave leaves a granted growth to the node; further, unless nil, is the condition of a further growth.
func (in input) leave(further *corev1.PersistentVolumeClaimCondition) []step {
	next := forNode(in.claim, capacity(in.object), in.now, further)
	if next.equal(statusOf(in.claim)) {
		return nil
	}
	return []step{{what: "leave the growth to the node", status: &next}}
}

// forget removes what remains of a growth that is not requested any more.
func (in input) forget(own resource.Quantity) []step {
	out := in.drop()
	if state(in.claim) == refused {
		next := unmarked(in.claim, own)
		next.allocated = nil
		out = append(out, step{what: "end the growth", status: &next})
	}
	// Caches omit the sizes of a claim that does not grow.
	if granted := capacity(in.object); hasPreResizeCapacity(in.object) && (own.IsZero() || granted.Cmp(own) <= 0) {
		out = append(out, step{what: "end what is noted of the growth", before: &resource.Quantity{}})
	}
	return out
}

// drop removes a promise that was not granted.
func (in input) drop() []step {
	if _, promised := in.object.Annotations[pv.AnnotationGrowingTo]; !promised {
		return nil
	}
	none := ""
	return []step{{what: "end the promise", growing: &none}}
}

// broken reports whether the node cannot reach the capacity of the PersistentVolume, and otherwise
// returns when to check again. After kubelet has given up, it would retry ten times a second for as
// long as the PersistentVolume is larger than the claim.
func (in input) broken() (bool, time.Time) {
	_, again := in.lacking()
	if in.lacksForLong() || state(in.claim) == failed {
		return true, time.Time{}
	}
	c := condition(in.claim, corev1.PersistentVolumeClaimNodeResizeError)
	if c == nil {
		return false, again
	}
	until := c.LastTransitionTime.Add(nodeErrorGrace)
	if until.Sub(in.now) > 2*nodeErrorGrace { // the node's clock is ahead, so the grace period counts as over
		return true, time.Time{}
	}
	if again.IsZero() || until.Before(again) {
		again = until
	}
	return !in.now.Before(until), again
}

// ranOutOfTime reports whether kubelet's call has ended before the node was done. The new room of a raw
// block volume is zeroed, and the next call continues where the last one ended, so its backoff is not
// extended.
func ranOutOfTime(c *corev1.PersistentVolumeClaimCondition) bool {
	return strings.Contains(c.Message, codes.DeadlineExceeded.String())
}

// lacking reports whether the pool holds less than is promised in it, and until when that may be
// transient; zero if the grace period is over.
func (in input) lacking() (lacks bool, until time.Time) {
	if in.lacks.IsZero() {
		return false, time.Time{}
	}
	if until = in.lacks.Add(lackGrace); in.now.Before(until) {
		return true, until
	}
	return true, time.Time{}
}

// lacksForLong reports whether the pool holds less than is promised in it, and the grace period is over.
func (in input) lacksForLong() bool {
	lacks, until := in.lacking()
	return lacks && until.IsZero()
}

// takeBack lowers the PersistentVolume's capacity to the claim's. The claim is written first: from then
// on, pods start with the volume as it is.
func (in input) takeBack(own resource.Quantity) plan {
	said, none, zero := capacity(in.object), "", resource.Quantity{}
	why := fmt.Sprintf("its PersistentVolume said %s, and its pool does not hold that beside what is promised to others", said.String())
	if c := condition(in.claim, corev1.PersistentVolumeClaimNodeResizeError); c != nil {
		why = fmt.Sprintf("the node could not grow it: %s", volume.Clip(c.Message, 400, "…"))
	}
	answer := ledger.Answer{Outcome: ledger.Waiting, Why: why}
	next := blocked(in.claim, in.conditionFor(answer))
	return plan{takenBack: true, answer: &answer, steps: []step{
		{what: "take the growth back", status: &next},
		{what: "set the capacity back", capacity: &own, growing: &none, before: &zero},
	}}
}

// grow handles a claim that has its PersistentVolume's capacity, and asks for more.
func (in input) grow(ask func(volume.Bytes) ledger.Answer) plan {
	answer := in.ask(ask)
	if answer.Outcome == ledger.Granted {
		return in.grant(answer)
	}
	if lacks, until := in.lacking(); lacks && !until.IsZero() && answer.Outcome == ledger.Waiting && in.promised() {
		return plan{again: until} // the lack may be transient
	}
	out := plan{answer: &answer, steps: in.promise(answer), again: in.notBefore}
	if next := blocked(in.claim, in.conditionFor(answer)); !next.equal(statusOf(in.claim)) {
		out.steps = append(out.steps, step{what: "say why it does not grow", status: &next})
	}
	return out
}

// growFurther handles a claim whose granted size the node has not reached yet, and that asks for even
// more. The node may continue with the granted size meanwhile.
func (in input) growFurther(ask func(volume.Bytes) ledger.Answer) plan {
	answer := in.ask(ask)
	if answer.Outcome == ledger.Granted {
		return in.grant(answer)
	}
	further := in.conditionFor(answer)
	return plan{answer: &answer, steps: append(in.promise(answer), in.leave(&further)...), again: in.notBefore}
}

// conditionFor returns the condition that reports the decision on the growth. A recent condition with the same
// reason stays, because its numbers change all the time.
func (in input) conditionFor(answer ledger.Answer) corev1.PersistentVolumeClaimCondition {
	out := resizeCondition(in.claim, answer, in.since)
	if c := condition(in.claim, out.Type); c != nil && in.reportedRecently && c.Reason == out.Reason {
		return *c
	}
	return out
}

func (in input) ask(ask func(volume.Bytes) ledger.Answer) ledger.Answer {
	requested := asked(in.claim)
	if in.now.Before(in.notBefore) {
		return ledger.Answer{Outcome: ledger.Waiting, Why: fmt.Sprintf("the node could not grow it, as an event of its pod says; it is retried at %s", in.notBefore.UTC().Format(time.RFC3339))}
	}
	if requested.CmpInt64(int64(volume.MaxSize)) > 0 { // even a quantity that overflows an integer
		return ledger.Answer{Outcome: ledger.Refused, Why: fmt.Sprintf("the most that is supported is %s", volume.MaxSize)}
	}
	answer := ask(volume.Bytes(requested.Value()))
	if answer.RoomUnknown && in.promised() && !in.lacksForLong() { // one failed round of the node withdraws no promise
		return ledger.Answer{Outcome: ledger.MakingRoom, Why: "its room stays reserved, but " + answer.Why}
	}
	return answer
}

// promised reports whether the PersistentVolume records the requested size as promised.
func (in input) promised() bool {
	requested := asked(in.claim)
	return in.object.Annotations[pv.AnnotationGrowingTo] == strconv.FormatInt(requested.Value(), 10)
}

// promise records the promise on the PersistentVolume, or removes it if there is none.
func (in input) promise(answer ledger.Answer) []step {
	if answer.Outcome != ledger.MakingRoom {
		return in.drop()
	}
	if in.promised() {
		return nil
	}
	requested := asked(in.claim)
	to := strconv.FormatInt(requested.Value(), 10)
	return []step{{what: "promise the growth", growing: &to}}
}

// grant raises the capacity. kube-controller-manager may have marked the claim with an earlier request,
// and would continue with that if it saw the mark together with the new capacity.
func (in input) grant(answer ledger.Answer) plan {
	requested, own, none := asked(in.claim), has(in.claim), ""
	clean, next := unmarked(in.claim, requested), forNode(in.claim, requested, in.now, nil)
	next.state = pending
	out := plan{answer: &answer}
	if before := statusOf(in.claim); before.state != "" || before.allocated == nil || before.allocated.Cmp(requested) != 0 {
		out.steps = append(out.steps, step{what: "clear the claim", status: &clean})
	}
	out.steps = append(out.steps,
		step{what: "raise the capacity", capacity: &requested, growing: &none, before: &own},
		step{what: "leave the growth to the node", status: &next})
	return out
}
