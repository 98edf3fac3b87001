package provision

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/flexlvm/flexlvm/internal/pv"
)

// serveSnapshot returns a client of an API server with the VolumeSnapshot "monday", whose status names this content.
// paths returns the requested paths.
func serveSnapshot(t *testing.T, content string) (client kubernetes.Interface, paths func() []string) {
	t.Helper()
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path)
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"metadata": {"namespace": "team-a", "name": "monday", "uid": "uid-1"},
			"spec": {"driver": %q, "volumeSnapshotRef": {"namespace": "team-a", "name": "monday", "uid": "uid-1"}},
			"status": {"readyToUse": true, "boundVolumeSnapshotContentName": %q, "snapshotHandle": "flexlvm/snap-1"}}`, pv.Provisioner, content)
	}))
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	require.NoError(t, err)
	return client, func() []string { return asked }
}

func TestSnapshotNow(t *testing.T) {
	const group = "/apis/snapshot.storage.k8s.io/v1"
	client, paths := serveSnapshot(t, "content-1")
	handle, err := snapshotNow(client)(t.Context(), "team-a", "monday")
	require.NoError(t, err)
	require.Equal(t, "flexlvm/snap-1", handle)
	require.Equal(t, []string{group + "/namespaces/team-a/volumesnapshots/monday", group + "/volumesnapshotcontents/content-1"}, paths())
}

// The name of a VolumeSnapshot comes from a user, and its status may be written by others than the snapshot
// controller. Neither may lead to another object.
func TestSnapshotNowAsksForNothingElse(t *testing.T) {
	for _, name := range []string{"../../../../../../api/v1/pods", "..", ".", "monday/status", "monday%2fstatus", ""} {
		client, paths := serveSnapshot(t, "content-1")
		_, err := snapshotNow(client)(t.Context(), "team-a", name)
		require.Error(t, err, name)
		require.Empty(t, paths(), name)
	}
	client, paths := serveSnapshot(t, "../../../../api/v1/pods")
	_, err := snapshotNow(client)(t.Context(), "team-a", "monday")
	require.ErrorContains(t, err, "look up VolumeSnapshotContent")
	require.Len(t, paths(), 1)
}
