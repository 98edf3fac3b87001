package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record/util"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
	"k8s.io/utils/lru"
)

const (
	// Events wait here for their turn; those that find no place are logged and lost.
	eventQueue = 1000
	// A node tells much at once after it was away, and little else.
	eventBurst, eventsPerSecond = 1000, 1
	// An event that comes again is counted in the one that there is, if it is among the last.
	eventsKnown = 256
	// How often an event is sent while the API server is away, as client-go does it.
	eventTries = 12
)

// A Recorder sends events to the API in the background, one after the other. client-go's
// recorder does so, too; with the strategic merge patches that it makes, it would take a
// megabyte more on every node (decision 004).
type Recorder struct {
	client *Client
	source corev1.EventSource
	queue  chan *corev1.Event
	known  *lru.Cache // what an event says → sentEvent
	limit  flowcontrol.RateLimiter
	again  time.Duration // between two tries
}

// NewRecorder returns a recorder of events that component finds on a node. It sends them until
// ctx ends.
func NewRecorder(ctx context.Context, client *Client, component, node string) *Recorder {
	r := newRecorder(client, component, node)
	go r.run(ctx)
	return r
}

func newRecorder(client *Client, component, node string) *Recorder {
	return &Recorder{
		client: client, source: corev1.EventSource{Component: component, Host: node},
		queue: make(chan *corev1.Event, eventQueue), known: lru.New(eventsKnown),
		limit: flowcontrol.NewTokenBucketRateLimiter(eventsPerSecond, eventBurst),
		again: 10 * time.Second,
	}
}

// Event records an event of a type, Normal or Warning, about an object. It does not wait.
func (r *Recorder) Event(about *corev1.ObjectReference, eventType, reason, message string) {
	now := metav1.Now()
	namespace := about.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	e := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: namespace, Name: util.GenerateEventName(about.Name, now.UnixNano())},
		InvolvedObject: *about, Type: eventType, Reason: reason, Message: message,
		Source: r.source, ReportingController: r.source.Component, ReportingInstance: r.source.Host,
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	select {
	case r.queue <- e:
	default:
		klog.InfoS("An event is lost: too many wait for the API server", "object", klog.KRef(about.Namespace, about.Name), "reason", reason, "message", message)
	}
}

func (r *Recorder) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-r.queue:
			if r.limit.Wait(ctx) == nil {
				r.deliver(ctx, e)
			}
		}
	}
}

// deliver sends an event until the API server has answered.
func (r *Recorder) deliver(ctx context.Context, e *corev1.Event) {
	for try := 1; ; try++ {
		err := r.send(ctx, e)
		if err == nil {
			return
		}
		if refused(err) || try == eventTries {
			klog.InfoS("An event is lost", "object", klog.KRef(e.InvolvedObject.Namespace, e.InvolvedObject.Name), "reason", e.Reason, "message", e.Message, "err", err)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(r.again):
		}
	}
}

// refused reports whether the same request would be refused again.
func refused(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code < http.StatusInternalServerError && code != http.StatusTooManyRequests
}

// eventKey is what two events have in common that are one.
type eventKey struct {
	about                      corev1.ObjectReference
	eventType, reason, message string
}

type sentEvent struct {
	name  string
	count int32
}

func (r *Recorder) send(ctx context.Context, e *corev1.Event) error {
	key := eventKey{e.InvolvedObject, e.Type, e.Reason, e.Message}
	if known, ok := r.known.Get(key); ok {
		sent := known.(sentEvent)
		sent.count++
		err := r.count(ctx, e, sent)
		if err == nil {
			r.known.Add(key, sent)
		}
		if !apierrors.IsNotFound(err) { // where it was for an hour, events are removed
			return err
		}
	}
	request := r.client.core.Post().Namespace(e.Namespace).Resource("events").Body(e).MaxRetries(0)
	if err := r.client.send(ctx, request, nil); err != nil && !apierrors.IsAlreadyExists(err) { // an answer may be lost
		return err
	}
	r.known.Add(key, sentEvent{name: e.Name, count: e.Count})
	return nil
}

// count says in an event that there is that it has come again.
func (r *Recorder) count(ctx context.Context, e *corev1.Event, sent sentEvent) error {
	patch := fmt.Appendf(nil, `{"count":%d,"lastTimestamp":%q}`, sent.count, e.LastTimestamp.UTC().Format(time.RFC3339))
	request := r.client.core.Patch(types.MergePatchType).Namespace(e.Namespace).Resource("events").Name(sent.name).Body(patch).MaxRetries(0)
	return r.client.send(ctx, request, nil)
}
