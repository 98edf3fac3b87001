package nodeagent_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/kube"
)

// fakeAPI implements the part of the API server that the daemon uses, and injects faults.
type fakeAPI struct {
	t      testing.TB
	server *httptest.Server
	codecs serializer.CodecFactory
	// clientTimeout is longer than a busy machine takes to answer.
	clientTimeout time.Duration

	mu      sync.Mutex
	version int
	cluster string
	volumes map[string]*corev1.PersistentVolume
	claims  map[string]*corev1.PersistentVolumeClaim
	pods    map[string]*corev1.Pod
	waiting []corev1.Pod // pods without a node
	groups  map[string]*flexlvmv1.VolumeGroup
	// discovery is the VolumeDiscovery; nil if there is none.
	discovery *flexlvmv1.VolumeDiscovery
	// readers is a PersistentVolume without a node.
	readers *corev1.PersistentVolume
	// nodeLabels are the labels of the Node.
	nodeLabels map[string]string
	storage    *flexlvmv1.NodeStorage
	events     []corev1.Event
	repeated   map[string]int // number of repeated events, by reason; told does not return them
	watchers   []*watcher
	history    []change
	// hung: long watches send no more events.
	hung bool
	// unmarked: short watches end without a bookmark.
	unmarked bool
	// compacted: short watches fail because their resourceVersion is too old.
	compacted bool
	asked     map[string]int // requests, by verb and resource
	// fault answers a request instead of the server. If it is nil or returns false, the server answers.
	fault func(w http.ResponseWriter, verb, resource string) bool
}

type watcher struct {
	resource string
	selects  selector
	events   chan any
}

// A change is an event for the watches that start at an older version.
type change struct {
	version  int
	resource string
	object   metav1.Object
	event    any
}

// A selector reports whether an object matches a request's labels and fields.
type selector func(metav1.Object) bool

// selectorOf returns the selector of a request, as the API server interprets it.
func (a *fakeAPI) selectorOf(r *http.Request) selector {
	byLabel, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	require.NoError(a.t, err)
	byField, err := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
	require.NoError(a.t, err)
	return func(o metav1.Object) bool {
		set := fields.Set{"metadata.name": o.GetName()}
		if pod, is := o.(*corev1.Pod); is {
			set["spec.nodeName"], set["status.phase"] = pod.Spec.NodeName, string(pod.Status.Phase)
		}
		return byLabel.Matches(labels.Set(o.GetLabels())) && byField.Matches(set)
	}
}

func newAPI(t testing.TB) *fakeAPI {
	scheme := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(scheme))
	require.NoError(t, flexlvmv1.AddToScheme(scheme))
	a := &fakeAPI{
		t: t, codecs: serializer.NewCodecFactory(scheme), clientTimeout: soon / 2, version: 10, cluster: evictiontest.Cluster,
		volumes: map[string]*corev1.PersistentVolume{}, claims: map[string]*corev1.PersistentVolumeClaim{},
		pods: map[string]*corev1.Pod{}, groups: map[string]*flexlvmv1.VolumeGroup{}, asked: map[string]int{}, repeated: map[string]int{},
	}
	a.server = httptest.NewUnstartedServer(a)
	require.NoError(t, a.server.Listener.Close())
	a.server.Listener = listenAlone(t)
	a.server.Start()
	t.Cleanup(func() {
		a.server.CloseClientConnections()
		a.server.Close()
	})
	return a
}

// servers is the number of addresses that listenAlone has used.
var servers atomic.Uint32

// listenAlone listens on an address that no other server on the machine uses, so that a server can listen on it again
// later. On a shared address, another process could use the port in between.
func listenAlone(t testing.TB) net.Listener {
	n := servers.Add(1)
	listener, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", 1+os.Getpid()%250, 1+n/250%250, 1+n%250))
	require.NoError(t, err)
	return listener
}

func (a *fakeAPI) client() *kube.Client {
	client, err := kube.NewClient(&rest.Config{Host: a.server.URL, QPS: -1, Timeout: a.clientTimeout})
	require.NoError(a.t, err)
	return client
}

// with runs f while it holds the lock of the objects.
func (a *fakeAPI) with(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

// fail makes the given requests fail with code, or without an answer if code is 0. A request is given as a verb, or
// as a verb and a resource. Without any, all requests fail.
func (a *fakeAPI) fail(code int, which ...string) {
	a.with(func() {
		a.fault = func(w http.ResponseWriter, verb, resource string) bool {
			if len(which) > 0 && !slices.Contains(which, verb) && !slices.Contains(which, verb+" "+resource) {
				return false
			}
			if code == 0 { // no answer at all
				panic(http.ErrAbortHandler)
			}
			reply(w, code, apierrors.NewGenericServerResponse(code, verb, schema.GroupResource{Resource: resource}, "", "made to fail", 0, false).ErrStatus)
			return true
		}
	})
	if len(which) == 0 {
		a.server.CloseClientConnections() // watches must fail as well
	}
}

// leave stops the server. Its address refuses connections until comeBack is called.
func (a *fakeAPI) leave() (comeBack func()) {
	address := a.server.Listener.Addr().String()
	require.NoError(a.t, a.server.Listener.Close())
	a.server.CloseClientConnections()
	return func() {
		listener, err := net.Listen("tcp", address)
		require.NoError(a.t, err)
		a.t.Cleanup(func() { _ = listener.Close() })
		go func() { _ = a.server.Config.Serve(listener) }()
	}
}

func (a *fakeAPI) mend() { a.with(func() { a.fault = nil }) }

// requests returns the number of requests with a verb and resource.
func (a *fakeAPI) requests(which string) (n int) {
	a.with(func() { n = a.asked[which] })
	return n
}

// put adds or replaces a PersistentVolume.
func (a *fakeAPI) put(pv *corev1.PersistentVolume) {
	a.with(func() {
		kind := "MODIFIED"
		if a.volumes[pv.Name] == nil {
			kind = "ADDED"
		}
		a.volumes[pv.Name] = pv.DeepCopy()
		a.changed(kind, a.volumes[pv.Name])
	})
}

// volume returns a copy of a PersistentVolume, or nil if there is none.
func (a *fakeAPI) volume(name string) (out *corev1.PersistentVolume) {
	a.with(func() { out = a.volumes[name].DeepCopy() })
	return out
}

// report returns a copy of the NodeStorage, or nil if there is none.
func (a *fakeAPI) report() (out *flexlvmv1.NodeStorage) {
	a.with(func() { out = a.storage.DeepCopy() })
	return out
}

// told returns the events with a reason, in the form "Kind/name: message".
func (a *fakeAPI) told(reason string) (out []string) {
	a.with(func() {
		for _, e := range a.events {
			if e.Reason == reason {
				out = append(out, fmt.Sprintf("%s/%s: %s", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Message))
			}
		}
	})
	return out
}

// changed increments the version of an object and notifies the watchers. The caller holds the lock.
func (a *fakeAPI) changed(kind string, o metav1.Object) {
	a.version++
	o.SetResourceVersion(strconv.Itoa(a.version))
	resource := ""
	switch x := o.(type) {
	case *corev1.PersistentVolume:
		x.TypeMeta, resource = metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolume"}, "persistentvolumes"
	case *corev1.Pod:
		x.TypeMeta, resource = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, "pods"
	case *flexlvmv1.VolumeGroup:
		x.TypeMeta, resource = metav1.TypeMeta{APIVersion: "flexlvm.io/v1", Kind: "VolumeGroup"}, "volumegroups"
	case *flexlvmv1.VolumeDiscovery:
		x.TypeMeta, resource = metav1.TypeMeta{APIVersion: "flexlvm.io/v1", Kind: "VolumeDiscovery"}, "volumediscoveries"
	case *flexlvmv1.NodeStorage:
		x.TypeMeta, resource = metav1.TypeMeta{APIVersion: "flexlvm.io/v1", Kind: "NodeStorage"}, "nodestorages"
	}
	event := map[string]any{"type": kind, "object": o.(runtime.Object).DeepCopyObject()}
	a.history = append(a.history, change{a.version, resource, o, event})
	for _, w := range a.watchers {
		if w.resource == resource && w.selects(o) && !a.hung {
			w.events <- event
		}
	}
}
