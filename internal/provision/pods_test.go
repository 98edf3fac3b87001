package provision

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"github.com/flexlvm/flexlvm/internal/kube"
)

// If the watch does not show any pod, the API server is asked in pages, and only little of each pod is kept.
func TestWaitingPodsThatTheWatchDoesNotShow(t *testing.T) {
	podOf := func(name, claim string) corev1.Pod {
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, Annotations: map[string]string{"much": "text"}},
			Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Env: []corev1.EnvVar{{Name: "MUCH", Value: "text"}}}},
				Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
				}}},
			},
		}
	}
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		asked = append(asked, strings.Join([]string{r.URL.Path, query.Get("fieldSelector"), query.Get("limit"), query.Get("continue")}, " "))
		list := corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: []corev1.Pod{podOf("a", "data"), podOf("b", "other")}}
		if query.Get("continue") == "" {
			list.Continue = "next"
		} else {
			list.Items = []corev1.Pod{podOf("c", "data")}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list)
	}))
	t.Cleanup(server.Close)
	api, err := kube.NewClient(&rest.Config{Host: server.URL, QPS: -1})
	require.NoError(t, err)
	pods, err := newWaitingPods(fake.NewClientset(), api, podResync)
	require.NoError(t, err)
	found, err := pods.using(t.Context(), "team", "data")
	require.NoError(t, err)
	require.Len(t, found, 2)
	for i, name := range []string{"a", "c"} {
		require.Equal(t, name, found[i].Name)
		require.Equal(t, podOf("", "data").Spec.Volumes, found[i].Spec.Volumes)
		require.Empty(t, found[i].Annotations)
		require.Empty(t, found[i].Spec.Containers)
	}
	require.Equal(t, []string{"/api/v1/namespaces/team/pods spec.nodeName= 500 ", "/api/v1/namespaces/team/pods spec.nodeName= 500 next"}, asked)
	server.Close()
	_, err = pods.using(t.Context(), "team", "data")
	require.Error(t, err)
}
