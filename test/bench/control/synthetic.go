package control

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// A synthetic cluster is a proxy between a provisioner and the API server. It simulates more nodes and volumes than
// an API server and etcd could hold on one small machine. It generates them for each list and each watch, in the
// requested encoding, and they never change. All other requests go to the API server, which has the access rules,
// the lease, the classes and the capacities.
type synthetic struct {
	kinds  map[string]kind // by the paths of their lists
	server *httptest.Server
	next   http.Handler

	mu     sync.Mutex
	failed []error
}

// A kind generates the objects of a kind.
type kind struct {
	n    int
	make func(i int) runtime.Object
}

const (
	mediaProtobuf = "application/vnd.kubernetes.protobuf"
	mediaJSON     = "application/json"
	// syntheticVersion is the resourceVersion of all lists. It is greater than that of any object.
	syntheticVersion = 90_000_000
)

// version returns the resourceVersion of an object. Each kind has fewer than ten million objects.
func version(kind, i int) string { return strconv.Itoa(kind*10_000_000 + i) }

// synthesise starts a synthetic cluster, and writes its kubeconfig.
func (b *bed) synthesise(ctx context.Context, like *corev1.PersistentVolume, s stage) (_ *synthetic, kubeconfig string, err error) {
	out := &synthetic{kinds: map[string]kind{
		"/api/v1/nodes": {s.nodes, func(i int) runtime.Object { return syntheticNode(i) }},
		"/apis/flexlvm.io/v1/nodestorages": {s.nodes, func(i int) runtime.Object {
			storage := newStorage(nodeName(i), syntheticNode(i).UID)
			storage.APIVersion, storage.Kind, storage.ResourceVersion = "flexlvm.io/v1", "NodeStorage", version(2, i)
			storage.UID = types.UID(fmt.Sprintf("%08d-0000-4000-a000-000000000000", i))
			storage.Status = statusOfStorage(roomOfNode)
			return storage
		}},
		"/api/v1/persistentvolumes": {s.nodes * s.each, func(i int) runtime.Object {
			_, volume := b.bound(like, i/s.each, i%s.each)
			volume.ResourceVersion = version(3, i)
			return volume
		}},
		"/api/v1/persistentvolumeclaims": {s.nodes * s.each, func(i int) runtime.Object {
			claim, _ := b.bound(like, i/s.each, i%s.each)
			claim.ResourceVersion = version(4, i)
			return claim
		}},
	}}
	config, err := clientcmd.BuildConfigFromFlags("", b.kubeconfig)
	if err != nil {
		return nil, "", err
	}
	target, err := url.Parse(config.Host)
	if err != nil {
		return nil, "", err
	}
	config.Dial, config.BearerToken = b.cluster.Dial, "" // the client sends its own token
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, "", err
	}
	out.next = &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1, // for watches
	}
	out.server = httptest.NewUnstartedServer(out)
	out.server.Listener.Close()
	if out.server.Listener, err = b.cluster.Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
		return nil, "", err
	}
	out.server.EnableHTTP2 = true
	out.server.StartTLS()
	kubeconfig, err = b.kubeconfigOf(out.server)
	return out, kubeconfig, err
}

// kubeconfigOf returns the provisioner's kubeconfig with another server.
func (b *bed) kubeconfigOf(server *httptest.Server) (string, error) {
	config, err := clientcmd.LoadFromFile(b.kubeconfig)
	if err != nil {
		return "", err
	}
	for _, c := range config.Clusters {
		c.Server = server.URL
		c.CertificateAuthorityData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	}
	path := filepath.Join(b.dir, "synthetic.kubeconfig")
	return path, clientcmd.WriteToFile(*config, path)
}

// end stops the synthetic cluster. It returns an error if a request was not supported: the provisioner's work then
// differed from that in a real cluster.
func (s *synthetic) end() error {
	s.server.CloseClientConnections()
	s.server.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.failed...)
}

func (s *synthetic) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	k, whole := s.kinds[r.URL.Path]
	if !whole {
		if s.ofOurs(r.URL.Path) {
			s.refuse(w, r, errors.New("only lists and watches of all such objects are synthetic"))
			return
		}
		s.next.ServeHTTP(w, r)
		return
	}
	query := r.URL.Query()
	var err error
	switch {
	case r.Method != http.MethodGet || query.Get("labelSelector") != "" || query.Get("fieldSelector") != "":
		err = errors.New("only lists and watches of all such objects are synthetic")
	case query.Get("watch") != "":
		err = k.watch(w, r)
	default:
		err = k.list(w, r)
	}
	if err != nil && r.Context().Err() == nil {
		s.refuse(w, r, err)
	}
}

// ofOurs reports whether a path is that of a single synthetic object or of a namespace's synthetic objects: the API
// server has different ones.
func (s *synthetic) ofOurs(path string) bool {
	for of := range s.kinds {
		if strings.HasPrefix(path, of+"/") {
			return true
		}
	}
	return strings.HasPrefix(path, "/api/v1/namespaces/") && strings.Contains(path, "/persistentvolumeclaims")
}

func (s *synthetic) refuse(w http.ResponseWriter, r *http.Request, err error) {
	err = fmt.Errorf("synthetic cluster: %s %s: %w", r.Method, r.URL, err)
	s.mu.Lock()
	s.failed = append(s.failed, err)
	s.mu.Unlock()
	http.Error(w, err.Error(), http.StatusInternalServerError)
}

// A coding is an encoding of objects, with its framing of a watch's events.
type coding struct {
	media  string
	encode func(runtime.Object) ([]byte, error)
	frame  func(io.Writer) io.Writer
	event  func(*metav1.WatchEvent) ([]byte, error)
}

// codingOf returns the client's preferred encoding.
func codingOf(r *http.Request) coding {
	if !strings.HasPrefix(r.Header.Get("Accept"), mediaProtobuf) {
		return coding{
			media:  mediaJSON,
			encode: func(o runtime.Object) ([]byte, error) { return json.Marshal(o) },
			frame:  func(w io.Writer) io.Writer { return w },
			event:  func(e *metav1.WatchEvent) ([]byte, error) { return json.Marshal(e) },
		}
	}
	objects, events := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), protobuf.NewRawSerializer(scheme.Scheme, scheme.Scheme)
	return coding{
		media:  mediaProtobuf,
		encode: func(o runtime.Object) ([]byte, error) { return runtime.Encode(objects, o) },
		frame:  protobuf.LengthDelimitedFramer.NewFrameWriter,
		event:  func(e *metav1.WatchEvent) ([]byte, error) { return runtime.Encode(events, e) },
	}
}

// watch sends all objects if the client requests them, and then nothing until the watch ends.
func (k kind) watch(w http.ResponseWriter, r *http.Request) error {
	query, c := r.URL.Query(), codingOf(r)
	limit, err := strconv.Atoi(query.Get("timeoutSeconds"))
	if err != nil {
		return fmt.Errorf("read the watch's timeout: %w", err)
	}
	ctx, cancel := context.WithTimeout(r.Context(), time.Duration(limit)*time.Second)
	defer cancel()
	w.Header().Set("Content-Type", c.media+map[bool]string{true: ";stream=watch"}[c.media == mediaProtobuf])
	w.WriteHeader(http.StatusOK)
	if query.Get("sendInitialEvents") == "true" {
		if err := k.send(w, c); err != nil {
			return err
		}
	}
	if err := http.NewResponseController(w).Flush(); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// send sends all objects and the bookmark after them.
func (k kind) send(w io.Writer, c coding) error {
	to := c.frame(w)
	send := func(what watch.EventType, object runtime.Object) error {
		raw, err := c.encode(object)
		if err != nil {
			return err
		}
		event, err := c.event(&metav1.WatchEvent{Type: string(what), Object: runtime.RawExtension{Raw: raw}})
		if err != nil {
			return err
		}
		_, err = to.Write(event)
		return err
	}
	for i := range k.n {
		if err := send(watch.Added, k.make(i)); err != nil {
			return err
		}
	}
	mark := k.make(0)
	object, err := meta.Accessor(mark)
	if err != nil {
		return err
	}
	object.SetResourceVersion(strconv.Itoa(syntheticVersion))
	object.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	return send(watch.Bookmark, mark)
}

// list sends a page of PersistentVolumes, the only synthetic kind that the provisioner lists.
func (k kind) list(w http.ResponseWriter, r *http.Request) error {
	query, c := r.URL.Query(), codingOf(r)
	from, page := 0, k.n
	if token := query.Get("continue"); token != "" {
		text, err := base64.RawURLEncoding.DecodeString(token)
		if err == nil {
			from, err = strconv.Atoi(string(text))
		}
		if err != nil {
			return fmt.Errorf("read where the page begins: %w", err)
		}
	}
	if limit := query.Get("limit"); limit != "" {
		var err error
		if page, err = strconv.Atoi(limit); err != nil {
			return fmt.Errorf("read the size of the page: %w", err)
		}
	}
	out := &corev1.PersistentVolumeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeList"}}
	out.ResourceVersion = strconv.Itoa(syntheticVersion)
	to := min(k.n, from+page)
	if to < k.n {
		out.Continue = base64.RawURLEncoding.EncodeToString([]byte(strconv.Itoa(to)))
	}
	for i := from; i < to; i++ {
		volume, is := k.make(i).(*corev1.PersistentVolume)
		if !is {
			return errors.New("only PersistentVolumes are listed")
		}
		out.Items = append(out.Items, *volume)
	}
	content, err := c.encode(out)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", c.media)
	_, err = w.Write(content)
	return err
}
