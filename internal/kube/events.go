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

	"github.com/flexlvm/flexlvm/internal/pause"
)

const (
	// Events wait here to be sent; events that find the queue full are logged and dropped.
	eventQueue = 1000
	// A node sends a burst of events after it was cut off, and few otherwise.
	eventBurst, eventsPerSecond = 1000, 1
	// A repeated event increments the count of the existing event, if that is among this many last
	// ones.
	eventsKnown = 256
	// How often an event is sent while the API server is unavailable, as in client-go.
	eventTries = 12
)

// A Recorder sends events to the API in the background, one after the other. client-go's recorder does
// the same, but links strategic merge patches, which would take a megabyte more on every node (decision
// 004).
type Recorder struct {
	client *Client
	source corev1.EventSource
	queue  chan *corev1.Event
	known  *lru.Cache // eventKey → sentEvent
	limit  flowcontrol.RateLimiter
	again  time.Duration // between two tries of one event
}

// NewRecorder returns a recorder of events that component reports on a node. It sends them until ctx
// ends.
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

// Event queues an event of type Normal or Warning about an object. It does not block.
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

// deliver sends an event until the API server accepts or refuses it, or the tries are used up.
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
		if pause.For(ctx, r.again) != nil {
			return
		}
	}
}

// refused reports whether the API server would refuse the same request again.
func refused(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code < http.StatusInternalServerError && code != http.StatusTooManyRequests
}

// eventKey holds the fields by which two events are the same.
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
		if !apierrors.IsNotFound(err) { // events are deleted after an hour
			return err
		}
	}
	request := r.client.core.Post().Namespace(e.Namespace).Resource("events").Body(e).MaxRetries(0)
	if err := r.client.send(ctx, request, nil); err != nil && !apierrors.IsAlreadyExists(err) { // the response to an earlier try may have been lost
		return err
	}
	r.known.Add(key, sentEvent{name: e.Name, count: e.Count})
	return nil
}

// count records in an existing event that it has occurred again.
func (r *Recorder) count(ctx context.Context, e *corev1.Event, sent sentEvent) error {
	patch := fmt.Appendf(nil, `{"count":%d,"lastTimestamp":%q}`, sent.count, e.LastTimestamp.UTC().Format(time.RFC3339))
	request := r.client.core.Patch(types.MergePatchType).Namespace(e.Namespace).Resource("events").Name(sent.name).Body(patch).MaxRetries(0)
	return r.client.send(ctx, request, nil)
}
