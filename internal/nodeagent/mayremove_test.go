package nodeagent

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/kube"
	"github.com/flexlvm/flexlvm/internal/pv"
)

// A PersistentVolume of this node that was not there when a removal was decided, or has changed since, has yet to
// be judged.
func TestPersistentVolumeThatChangesBeforeTheRemoval(t *testing.T) {
	var now *corev1.PersistentVolume
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if now != nil {
			_ = json.NewEncoder(w).Encode(now)
			return
		}
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound})
	}))
	defer server.Close()
	api, err := kube.NewClient(&rest.Config{Host: server.URL})
	require.NoError(t, err)
	d := &Daemon{cfg: Config{Node: "node-1"}, api: api}
	ask := func(judged *corev1.PersistentVolume) error {
		return d.checkNotKept(t.Context(), inventory.Volume{Name: "old"}, judged)
	}
	of := func(node, version string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{
			TypeMeta:   metav1.TypeMeta{Kind: "PersistentVolume", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{Name: "old", UID: "uid", ResourceVersion: version, Labels: map[string]string{pv.LabelNode: node}},
		}
	}
	require.NoError(t, ask(nil), "none is there")
	now = of("node-1", "7")
	require.NoError(t, ask(of("node-1", "7")))
	require.True(t, refused(ask(nil), refusedChanged))
	require.True(t, refused(ask(of("node-1", "6")), refusedChanged))
	now = of("node-2", "7")
	require.True(t, refused(ask(nil), refusedKept))
	server.Close()
	require.True(t, refused(ask(nil), refusedUnanswered))
}

// An answer of the API server ends the backoff that its silence began.
func TestUnansweredEndsWithAnAnswer(t *testing.T) {
	d := &Daemon{unanswered: newBackoff(time.Second, time.Minute)}
	d.unanswered.add("uuid", time.Now(), "no answer")
	d.answered("uuid", &refusal{errors.New("words"), refusedUnanswered})
	require.Equal(t, 1, d.unanswered.times("uuid"))
	d.answered("uuid", &refusal{errors.New("words"), refusedKept})
	require.Zero(t, d.unanswered.times("uuid"))
}
