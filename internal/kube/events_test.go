package kube

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// An eventServer stores events. It answers the first requests with failures.
type eventServer struct {
	t        *testing.T
	mu       sync.Mutex
	failures []int // status codes; 0 closes the connection
	// loseAnswer: it stores the next event, and closes the connection without a response.
	loseAnswer bool
	asked      []string
	events     map[string]*corev1.Event
}

func (s *eventServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r.Method+" "+strings.Split(r.URL.Path, "/events")[0])
	body, err := io.ReadAll(r.Body)
	require.NoError(s.t, err)
	if len(s.failures) > 0 {
		code := s.failures[0]
		s.failures = s.failures[1:]
		if code == 0 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(code)
		return
	}
	if r.Method == http.MethodPatch {
		name := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		e := s.events[name]
		if e == nil {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		require.NoError(s.t, json.Unmarshal(body, e))
		return
	}
	scheme := runtime.NewScheme()
	require.NoError(s.t, corev1.AddToScheme(scheme))
	o, _, err := serializer.NewCodecFactory(scheme).UniversalDeserializer().Decode(body, nil, nil)
	require.NoError(s.t, err)
	e := o.(*corev1.Event)
	if s.events[e.Name] != nil {
		w.WriteHeader(http.StatusConflict)
		return
	}
	s.events[e.Name] = e
	if s.loseAnswer {
		s.loseAnswer = false
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(http.StatusCreated)
}

func (s *eventServer) with(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
}

// one returns the only event, and the number of requests.
func (s *eventServer) one() (e corev1.Event, asked int) {
	s.with(func() {
		require.Len(s.t, s.events, 1)
		for _, only := range s.events {
			e = *only
		}
		asked = len(s.asked)
	})
	return e, asked
}

func newEventBed(t *testing.T) (*eventServer, *Recorder) {
	s := &eventServer{t: t, events: map[string]*corev1.Event{}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	client, err := NewClient(&rest.Config{Host: server.URL, QPS: -1})
	require.NoError(t, err)
	r := newRecorder(client, "flexlvm-gc", "node1")
	r.again = time.Millisecond
	return s, r
}

// drain sends the queued events.
func drain(t *testing.T, r *Recorder) {
	for {
		select {
		case e := <-r.queue:
			r.deliver(t.Context(), e)
		default:
			return
		}
	}
}

var claim = corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: "n", Name: "data", UID: "uid"}

func TestEventThatComesAgainIsCounted(t *testing.T) {
	s, r := newEventBed(t)
	for range 3 {
		r.Event(&claim, corev1.EventTypeWarning, "Evicted", "for room")
	}
	drain(t, r)
	e, asked := s.one()
	require.Equal(t, 3, asked)
	require.EqualValues(t, 3, e.Count)
	require.Equal(t, claim, e.InvolvedObject)
	require.Equal(t, []string{"Warning", "Evicted", "for room", "n", "flexlvm-gc", "node1", "flexlvm-gc", "node1"},
		[]string{e.Type, e.Reason, e.Message, e.Namespace, e.Source.Component, e.Source.Host, e.ReportingController, e.ReportingInstance})
	require.True(t, strings.HasPrefix(e.Name, "data."), e.Name)
	require.False(t, e.LastTimestamp.Before(&e.FirstTimestamp))

	// The API server deletes events after an hour: the event is then created again.
	s.with(func() { clear(s.events) })
	r.Event(&claim, corev1.EventTypeWarning, "Evicted", "for room")
	drain(t, r)
	e, _ = s.one()
	require.EqualValues(t, 1, e.Count)
	r.Event(&claim, corev1.EventTypeWarning, "Evicted", "for room")
	drain(t, r)
	e, _ = s.one()
	require.EqualValues(t, 2, e.Count)

	r.Event(&claim, corev1.EventTypeWarning, "Evicted", "for more room")
	node := corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: strings.Repeat("long.", 50), UID: "node1"}
	r.Event(&node, corev1.EventTypeNormal, "Evicted", "for room")
	drain(t, r)
	s.with(func() {
		require.Len(t, s.events, 3)
		require.Equal(t, "POST /api/v1/namespaces/default", s.asked[len(s.asked)-1])
	})
}

func TestEventIsSentUntilTheServerAnswers(t *testing.T) {
	s, r := newEventBed(t)
	s.failures = []int{0, http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusInternalServerError}
	r.Event(&claim, corev1.EventTypeNormal, "Released", "its claim is gone")
	drain(t, r)
	e, asked := s.one()
	require.Equal(t, 5, asked)
	require.EqualValues(t, 1, e.Count)

	s.failures = []int{http.StatusForbidden} // as while the event's namespace is being deleted
	r.Event(&claim, corev1.EventTypeNormal, "Released", "refused")
	drain(t, r)
	_, asked = s.one()
	require.Equal(t, 6, asked)

	for range eventTries + 1 {
		s.failures = append(s.failures, http.StatusServiceUnavailable)
	}
	r.Event(&claim, corev1.EventTypeNormal, "Released", "in vain")
	drain(t, r)
	_, asked = s.one()
	require.Equal(t, 6+eventTries, asked)
}

// An event whose response was lost exists, and is counted when it is repeated.
func TestEventWhoseAnswerIsLost(t *testing.T) {
	s, r := newEventBed(t)
	s.loseAnswer = true
	for range 2 {
		r.Event(&claim, corev1.EventTypeNormal, "Released", "its claim is gone")
	}
	drain(t, r)
	e, asked := s.one()
	require.Equal(t, 3, asked)
	require.EqualValues(t, 2, e.Count)
}

// Recording an event never blocks: events that find the queue full are dropped.
func TestEventsDoNotWait(t *testing.T) {
	s, r := newEventBed(t)
	for i := range eventQueue + 10 {
		r.Event(&claim, corev1.EventTypeNormal, "Released", strconv.Itoa(i))
	}
	drain(t, r)
	s.with(func() { require.Len(t, s.events, eventQueue) })
}

func TestRecorderSendsInTheBackground(t *testing.T) {
	s, _ := newEventBed(t)
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	client, err := NewClient(&rest.Config{Host: server.URL, QPS: -1})
	require.NoError(t, err)
	r := NewRecorder(t.Context(), client, "flexlvm-gc", "node1")
	r.Event(&claim, corev1.EventTypeNormal, "Released", "its claim is gone")
	require.Eventually(t, func() (sent bool) {
		s.with(func() { sent = len(s.events) == 1 })
		return sent
	}, time.Minute, time.Millisecond)
}
