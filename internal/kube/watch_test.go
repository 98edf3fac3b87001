package kube_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

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
