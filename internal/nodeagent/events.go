package nodeagent

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/kube"
	"github.com/flexlvm/flexlvm/internal/replica"
)

const (
	normal  = corev1.EventTypeNormal
	warning = corev1.EventTypeWarning
)

// maxMessage bounds a message; events.k8s.io/v1 limits notes to 1 KiB.
const maxMessage = 1000

// Component is the reporting component of the daemon's events.
const Component = "flexlvm-gc"

// A Recorder records events; kube.Recorder sends them to the API.
type Recorder interface {
	Event(about *corev1.ObjectReference, eventType, reason, message string)
}

// A quietRecorder drops the events of a dry run beside another daemon, which reports on the node: the dry run's
// events would follow other flags.
type quietRecorder struct {
	Recorder
	others func() (bool, error)
}

func (r quietRecorder) Event(about *corev1.ObjectReference, eventType, reason, message string) {
	if others, err := r.others(); !others && err == nil {
		r.Recorder.Event(about, eventType, reason, message)
	}
}

// events reports to people where they look: on the node, on the claim, on the PersistentVolume.
type events struct {
	recorder Recorder
	api      *kube.Client
	node     *corev1.ObjectReference
}

func newEvents(recorder Recorder, api *kube.Client, node string) events {
	// Like kubelet: `kubectl describe node` selects events by the node's name as UID.
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)}
	return events{recorder: recorder, api: api, node: ref}
}

func (e events) onNode(kind, reason, message string) {
	e.recorder.Event(e.node, kind, reason, clip(message, maxMessage))
}

func (e events) onVolume(pv *corev1.PersistentVolume, kind, reason, message string) {
	if pv == nil {
		return
	}
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolume", Name: pv.Name, UID: pv.UID}
	e.recorder.Event(ref, kind, reason, clip(message, maxMessage))
}

// onManager records an event on the VolumeManager whose replica was evicted.
func (e events) onManager(of eviction.Eviction, kind, reason, message string) {
	if of.Reason != eviction.ReasonReplica || of.Replica.Owner == "" || of.Replica.OwnerUID == "" {
		return
	}
	ref := &corev1.ObjectReference{
		APIVersion: replica.OwnerGroup + "/" + replica.OwnerVersion, Kind: replica.OwnerKind,
		Namespace: of.Volume.Namespace, Name: of.Replica.Owner, UID: types.UID(of.Replica.OwnerUID),
	}
	e.recorder.Event(ref, kind, reason, clip(message, maxMessage))
}

// onClaim records an event on a claim, unless the claim is gone or another one has its name. It reports whether
// that is settled: it is not while the claim cannot be read or is not bound yet.
func (e events) onClaim(ctx context.Context, ref *corev1.ObjectReference, kind, reason, message string) (settled bool) {
	if ref == nil || ref.UID == "" {
		return false
	}
	claim, err := e.api.PersistentVolumeClaim(ctx, ref.Namespace, ref.Name)
	if err != nil || claim.UID != ref.UID {
		klog.FromContext(ctx).V(1).Info("No event was sent to a claim: it is gone, or cannot be read", "claim", ref.Namespace+"/"+ref.Name, "err", err)
		return err == nil || apierrors.IsNotFound(err)
	}
	to := &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID}
	e.recorder.Event(to, kind, reason, clip(message, maxMessage))
	return true
}
