package kube_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/kube"
)

// A watch from a resourceVersion that the API server has not reached, as after a restore from a backup, fails
// like one from an expired resourceVersion.
func TestWatchesOfARestoredAPIServer(t *testing.T) {
	var revisions []string // paths of the requests for the current resourceVersion
	watches := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") != "" {
			watches++
			return
		}
		require.Equal(t, "metadata.name=flexlvm.io-revision", r.URL.Query().Get("fieldSelector"))
		revisions = append(revisions, r.URL.Path)
		_ = json.NewEncoder(w).Encode(metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: "500"}})
	}))
	defer server.Close()
	client, err := kube.NewClient(&rest.Config{Host: server.URL, QPS: -1})
	require.NoError(t, err)
	for path, of := range map[string]*cache.ListWatch{
		"/api/v1/persistentvolumes":                               client.WatchVolumes("node-1"),
		"/api/v1/namespaces/kube-system/pods":                     client.WatchPods("node-1"),
		"/apis/flexlvm.io/v1/nodestorages":                        client.WatchNodeStorage("node-1"),
		"/apis/flexlvm.io/v1/namespaces/kube-system/localvolumes": client.WatchLocalVolumes(),
		"/apis/flexlvm.io/v1/volumegroups":                        client.WatchVolumeGroups(),
		"/apis/flexlvm.io/v1/volumediscoveries":                   client.WatchVolumeDiscoveries(),
	} {
		revisions, watches = nil, 0
		for _, begins := range []string{"", "0", "499", "500"} {
			stream, err := of.WatchWithContext(t.Context(), metav1.ListOptions{ResourceVersion: begins})
			require.NoError(t, err, begins)
			stream.Stop()
		}
		require.Equal(t, 4, watches)
		_, err := of.WatchWithContext(t.Context(), metav1.ListOptions{ResourceVersion: "1000"})
		require.True(t, apierrors.IsResourceExpired(err), "%v", err)
		require.ErrorContains(t, err, "from resourceVersion 1000: the API server is at 500")
		require.Equal(t, 4, watches)
		require.Equal(t, []string{path, path, path}, revisions)
	}
}

// While the API server's resourceVersion cannot be read, no watch is started unchecked, and nothing is listed again.
func TestWatchesOfASlowAPIServer(t *testing.T) {
	const broken = 3
	var lists, revisions, checked atomic.Int32
	again := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		w.Header().Set("Content-Type", "application/json")
		switch {
		case query.Get("sendInitialEvents") != "": // as API servers without streamed lists respond
			w.WriteHeader(http.StatusUnprocessableEntity)
		case query.Get("watch") != "" && checked.Add(1) == 1: // ends after one event
			_, _ = io.WriteString(w, `{"type": "BOOKMARK", "object": {"apiVersion": "flexlvm.io/v1", "kind": "NodeStorage", "metadata": {"resourceVersion": "450"}}}`)
		case query.Get("watch") != "":
			again <- query.Get("resourceVersion")
			<-r.Context().Done()
		case query.Get("fieldSelector") == "metadata.name=flexlvm.io-revision":
			if n := revisions.Add(1); n > 1 && n <= 1+broken {
				w.WriteHeader(http.StatusGatewayTimeout)
				return
			}
			_ = json.NewEncoder(w).Encode(metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: "500"}})
		default:
			lists.Add(1)
			_ = json.NewEncoder(w).Encode(flexlvmv1.NodeStorageList{
				TypeMeta: metav1.TypeMeta{APIVersion: flexlvmv1.GroupVersion.String(), Kind: "NodeStorageList"},
				ListMeta: metav1.ListMeta{ResourceVersion: "400"},
			})
		}
	}))
	t.Cleanup(server.Close) // cleanups run after t.Context() has ended, which ends the watch
	client, err := kube.NewClient(&rest.Config{Host: server.URL, QPS: -1})
	require.NoError(t, err)
	reflector := cache.NewReflectorWithOptions(client.WatchNodeStorages(), &flexlvmv1.NodeStorage{}, cache.NewStore(cache.MetaNamespaceKeyFunc),
		cache.ReflectorOptions{Backoff: &wait.Backoff{Duration: time.Millisecond, Steps: 1}})
	ctx, cancel := context.WithCancel(t.Context())
	var runs sync.WaitGroup
	runs.Go(func() { reflector.RunWithContext(ctx) })
	require.Equal(t, "450", <-again)
	cancel()
	runs.Wait()
	require.EqualValues(t, 1, lists.Load())
	require.EqualValues(t, 2+broken, revisions.Load())
	require.EqualValues(t, 2, checked.Load())
}

// An error for which the API server would also refuse a list is reported instead.
func TestWatchesThatAreRefused(t *testing.T) {
	var answer int
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(answer) }))
	defer server.Close()
	client, err := kube.NewClient(&rest.Config{Host: server.URL, QPS: -1})
	require.NoError(t, err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for code, retried := range map[int]bool{
		http.StatusForbidden: false, http.StatusUnauthorized: false, http.StatusNotFound: false,
		http.StatusInternalServerError: true, http.StatusServiceUnavailable: true, http.StatusGatewayTimeout: true,
	} {
		answer = code
		_, err := client.WatchVolumes("node-1").WatchWithContext(t.Context(), metav1.ListOptions{ResourceVersion: "400"})
		require.ErrorContains(t, err, "read the resourceVersion of the persistentvolumes")
		require.Equal(t, retried, apierrors.IsTooManyRequests(err), "%d: %v", code, err)
		_, err = client.WatchVolumes("node-1").WatchWithContext(ended, metav1.ListOptions{ResourceVersion: "400"})
		require.ErrorIs(t, err, context.Canceled)
	}
}
