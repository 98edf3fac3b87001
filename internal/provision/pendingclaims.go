package provision

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/kubeobject"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	// eventNoRoom is the reason of the event on a claim that fits on no node.
	eventNoRoom = "NoRoom"
	// eventFailed is the library's event reason for a claim that cannot be served.
	eventFailed = "ProvisioningFailed"
	// eventRoom is the reason of the event that revokes a NoRoom.
	eventRoom = "Room"
	// repeatAfter is the interval at which an event is repeated while its cause lasts, and how long a
	// claim must wait for room before the metrics count it: with a cluster autoscaler, each such claim
	// waits until a node is added.
	repeatAfter = 5 * time.Minute
	// recheckAfter is how long a determined cause is kept: to determine it for many claims and many nodes
	// takes a while.
	recheckAfter = time.Minute
)

// pendingClaims reports, as events on claims of unschedulable pods, why they wait: how much room they
// need and how much there is, while the scheduler only reports how many nodes have too little; or what
// is wrong with a class for which no capacity is published, so that its claims never get a node.
type pendingClaims struct {
	ledger  *ledger.Ledger
	listers Listers
	events  record.EventRecorder
	metrics *Metrics
	now     func() time.Time
	door    pv.Door // of classes that name none

	mu       sync.Mutex
	reported map[types.UID]reportedCause
}

// A reportedCause is the last report on a claim.
type reportedCause struct {
	cause   string
	at      time.Time
	since   time.Time // when it was first reported that the claim waits, for any cause
	checked time.Time // when the cause was last determined
}

func newPendingClaims(ledger *ledger.Ledger, listers Listers, events record.EventRecorder, metrics *Metrics) *pendingClaims {
	return &pendingClaims{ledger: ledger, listers: listers, events: events, metrics: metrics, now: time.Now, reported: map[types.UID]reportedCause{}}
}

// handlePod handles a pod without a node. It is called for each such pod every podResync; a claim that is
// not in the cache yet is reported the next time.
func (w *pendingClaims) handlePod(pod *corev1.Pod) {
	if !kubeobject.PodNotScheduledFor(pod, corev1.PodReasonUnschedulable) {
		return
	}
	for _, key := range kubeobject.ClaimsOf(pod) {
		claim, err := w.listers.Claims.PersistentVolumeClaims(pod.Namespace).Get(strings.TrimPrefix(key, pod.Namespace+"/"))
		if err == nil && claim.Spec.VolumeName == "" && claim.Spec.StorageClassName != nil && !w.checkedRecently(claim.UID) {
			w.reportCause(claim)
		}
	}
}

func (w *pendingClaims) reportCause(claim *corev1.PersistentVolumeClaim) {
	class, err := w.listers.Classes.Get(*claim.Spec.StorageClassName)
	if err != nil || class.Provisioner != pv.Provisioner || !waits(class) {
		return
	}
	request := Request{PVName: persistentvolume.NameFor(claim.UID), Claim: claim, Class: class, Door: w.door}
	spec, parameters, err := request.Check()
	if refusal := (*controlplane.Refusal)(nil); errors.As(err, &refusal) {
		if claim.Annotations[pv.AnnotationSelectedNode] != "" {
			return // the claim has been processed, and the refusal reported
		}
		if due, _ := w.recordCause(claim.UID, refusal.Error()); due {
			w.metrics.Refused(refusal)
			w.metrics.warned(class.Name, waitsRefused)
			w.events.Event(claim, corev1.EventTypeWarning, eventFailed, refusal.Error())
		}
		return
	}
	cause, message := w.why(class, spec, parameters)
	due, waited := w.recordCause(claim.UID, cause)
	switch {
	case !due:
	case cause == causeRoom:
		w.events.Event(claim, corev1.EventTypeNormal, eventRoom, message)
	default:
		if waited >= repeatAfter {
			w.metrics.warned(class.Name, waitsNoRoom)
		}
		w.events.Event(claim, corev1.EventTypeWarning, eventNoRoom, message)
	}
}

// why returns why a volume fits on no node, or on which node it fits.
func (w *pendingClaims) why(class *storagev1.StorageClass, spec volume.Spec, parameters Parameters) (cause, message string) {
	var allows func(string) bool
	none := "no node"
	if len(class.AllowedTopologies) > 0 {
		none = fmt.Sprintf("no node that StorageClass %q allows (allowedTopologies)", class.Name)
		allows = func(name string) bool {
			node, err := w.listers.Nodes.Get(name)
			return err == nil && allowed(class, node)
		}
	}
	cause, message = shortage(none, class.Name, parameters.Pool(), spec.Size, w.ledger.Largest(parameters.Spec, allows))
	switch cause {
	case causeRoom:
		message += "; if its pod is not placed, the pod's events say why"
	case causeNoRoom:
		message += fmt.Sprintf("; it is placed as soon as there is room: delete claims that nobody needs, enlarge the %s, or add a node (`kubectl flexlvm plan --claim %s --class %s` shows each node)",
			parameters.Pool().Noun(), resource.NewQuantity(int64(spec.Size), resource.BinarySI), class.Name)
	}
	return cause, message
}

// checkedRecently reports whether the cause of a claim was determined recently.
func (w *pendingClaims) checkedRecently(claim types.UID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	last, reported := w.reported[claim]
	return reported && w.now().Sub(last.checked) < recheckAfter
}

// recordCause records the cause for which a claim waits, and reports whether an event is due: the cause
// has changed, or its last event is old. An event about available room is due only if another cause was
// reported before. waited is how long ago the claim was first reported.
func (w *pendingClaims) recordCause(claim types.UID, cause string) (due bool, waited time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	last, reported := w.reported[claim]
	w.forget(now)
	if cause == causeRoom {
		delete(w.reported, claim)
		return reported, 0
	}
	since := now
	if reported {
		since = last.since
	}
	if reported && last.cause == cause && now.Sub(last.at) < repeatAfter {
		last.checked = now
		w.reported[claim] = last
		return false, now.Sub(since)
	}
	w.reported[claim] = reportedCause{cause: cause, at: now, since: since, checked: now}
	return true, now.Sub(since)
}

// forget drops the claims that no pod waits for any more.
func (w *pendingClaims) forget(now time.Time) {
	for uid, last := range w.reported {
		if now.Sub(last.checked) >= repeatAfter {
			delete(w.reported, uid)
		}
	}
}
