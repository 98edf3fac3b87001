//go:build cluster

package dataset_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/test/await"
)

// testStream checks that consumers start while the data is still being loaded.
func (k *kubelets) testStream(t *testing.T) {
	s := k.namespace(t, "stream")
	s.play(s.name, func(*corev1.Pod) *corev1.PodStatus { return running(corev1.ConditionTrue) })
	s.make("v", with(s3, "{aws", `{stream: "true", streamAfter: "10", aws`))
	got := s.status("v", flexlvmv1.StateRunning, "success")
	require.Equal(t, flexlvmv1.ReplicaStreaming, got.Volumes[0].Nodes[0].State)
	require.Len(t, s.labelled("v"), 1)
	s.told("v", "LoadStarted", "claim v-a-0 on "+s.labelled("v")[0]+" is being loaded")
	of := `{dataset="v",dataset_namespace="stream",dataset_node="` + s.labelled("v")[0] + `",dataset_volume="a"} `
	require.Contains(t, k.metrics(t), "flexlvm_dataset_load_stalled"+of+"0\n")
	s.play(s.name, func(*corev1.Pod) *corev1.PodStatus { return terminated(75, `{"message":"the server is away"}`) })
	s.status("v", flexlvmv1.StatePending, "the server is away")
	await.Until(t, longest, func() string { return await.Missing(len(s.labelled("v")) == 0, "still labelled") })
	s.play(s.name, nil)
	s.status("v", flexlvmv1.StateRunning, "success")
	s.told("v", "ReplicaComplete", "3 files, 3145728 bytes, ")
	of = `{dataset="v",dataset_namespace="stream",dataset_node="` + s.labelled("v")[0] + `",dataset_volume="a"} `
	require.Contains(t, k.metrics(t), "flexlvm_dataset_loaded_bytes"+of+"3.145728e+06\n")
	require.Contains(t, k.metrics(t), "flexlvm_dataset_time_to_ready_seconds"+of)
	s.remove(s.get("v"))
	s.nothingLeft()
	await.Until(t, longest, func() string {
		return await.Missing(!strings.Contains(k.metrics(t), `dataset_namespace="stream"`), "the metrics of what is gone are still there")
	})
}

// metrics returns the provisioner's metrics.
func (b *bed) metrics(t *testing.T) string {
	t.Helper()
	asks := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, DialContext: b.cluster.Dial}}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:8095/metrics", nil)
	require.NoError(t, err)
	response, err := asks.Do(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return string(body)
}

// told waits for an event of a VolumeManager with the reason and a message that contains holds.
func (s *space) told(name, reason, holds string) {
	s.t.Helper()
	await.Until(s.t, longest, func() string {
		list := &corev1.EventList{}
		require.NoError(s.t, s.client.List(s.t.Context(), list, client.InNamespace(s.name)))
		var others []string
		for _, e := range list.Items {
			if e.InvolvedObject.Name != name || e.InvolvedObject.Kind != "VolumeManager" {
				continue
			}
			if e.Reason == reason && strings.Contains(e.Message, holds) {
				return ""
			}
			others = append(others, e.Reason+": "+e.Message)
		}
		return await.Missing(false, "no event %s with %q: %q", reason, holds, others)
	})
}
