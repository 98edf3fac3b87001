package provision

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/kube"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	// eventNoRoom is the reason of the event on a claim that fits on no node.
	eventNoRoom = "NoRoom"
	// eventFailed is the library's reason for a claim that cannot be served.
	eventFailed = "ProvisioningFailed"
	// annotationSelectedNode is where the scheduler names the node of a claim; only
	// then is its volume asked for.
	annotationSelectedNode = "volume.kubernetes.io/selected-node"
	// repeatAfter is how often it is told while it lasts.
	repeatAfter = 5 * time.Minute
)

// A pendingClaims tells claims of pods that the scheduler cannot place what keeps
// them: how much room they need and how much there is, where the scheduler says
// only on how many nodes there is too little; or what is wrong with a class for
// which nothing can be offered, so that no claim of its ever gets a node.
type pendingClaims struct {
	ledger  *ledger.Ledger
	listers Listers
	events  record.EventRecorder
	refused func(*controlplane.Refusal)
	now     func() time.Time

	mu   sync.Mutex
	told map[types.UID]time.Time
}

func newPendingClaims(ledger *ledger.Ledger, listers Listers, events record.EventRecorder, refused func(*controlplane.Refusal)) *pendingClaims {
	return &pendingClaims{ledger: ledger, listers: listers, events: events, refused: refused, now: time.Now, told: map[types.UID]time.Time{}}
}

// see looks at a pod without a node. It is called for all of them every lookAgain;
// a claim whose pod is seen before it is told the next time.
func (w *pendingClaims) see(pod *corev1.Pod) {
	if !unschedulable(pod) {
		return
	}
	for _, key := range kube.ClaimsOf(pod) {
		claim, err := w.listers.Claims.PersistentVolumeClaims(pod.Namespace).Get(strings.TrimPrefix(key, pod.Namespace+"/"))
		if err == nil && claim.Spec.VolumeName == "" && claim.Spec.StorageClassName != nil && !w.toldLately(claim.UID) {
			w.tell(claim)
		}
	}
}

func (w *pendingClaims) tell(claim *corev1.PersistentVolumeClaim) {
	class, err := w.listers.Classes.Get(*claim.Spec.StorageClassName)
	if err != nil || class.Provisioner != pv.Provisioner || !waits(class) {
		return
	}
	request := Request{PVName: "pvc-" + string(claim.UID), Claim: claim, Class: class}
	spec, parameters, err := request.Check()
	if refusal := (*controlplane.Refusal)(nil); errors.As(err, &refusal) {
		if claim.Annotations[annotationSelectedNode] != "" {
			return // it has been asked for, and told then
		}
		w.note(claim.UID)
		w.refused(refusal)
		w.events.Event(claim, corev1.EventTypeWarning, eventFailed, refusal.Error())
		return
	}
	if message := w.why(class.Name, spec, parameters); message != "" {
		w.note(claim.UID)
		w.events.Event(claim, corev1.EventTypeWarning, eventNoRoom, message)
	}
}

func unschedulable(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return true
		}
	}
	return false
}

// why says in numbers that a volume fits on no node; nothing where it fits on one.
func (w *pendingClaims) why(class string, spec volume.Spec, parameters Parameters) string {
	var most volume.Bytes
	best, nodes := "", 0
	for _, name := range w.ledger.Nodes() {
		offer, has := w.ledger.Offer(name, parameters.Spec)
		if !has {
			continue
		}
		nodes++
		if offer.Most >= spec.Size {
			return ""
		}
		if offer.Most > most || best == "" {
			best, most = name, offer.Most
		}
	}
	if nodes == 0 {
		return fmt.Sprintf("no node has %s %q, which StorageClass %q asks for; make it with `flexlvm vg create`", parameters.Pool().Noun(), parameters.Pool(), class)
	}
	return fmt.Sprintf("no node has room for it: %s are asked for, and the most that any of %d with %s %q can give is %s, on node %q; it is placed as soon as there is room",
		ledger.AmountOf(spec.Size), nodes, parameters.Pool().Noun(), parameters.Pool(), ledger.AmountOf(most), best)
}

// toldLately reports whether a claim knows what keeps it.
func (w *pendingClaims) toldLately(claim types.UID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	at, told := w.told[claim]
	return told && w.now().Sub(at) < repeatAfter
}

// note remembers that a claim is told now, and forgets those that were long ago.
func (w *pendingClaims) note(claim types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	for uid, at := range w.told {
		if now.Sub(at) >= repeatAfter {
			delete(w.told, uid)
		}
	}
	w.told[claim] = now
}
