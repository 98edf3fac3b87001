package dataset

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

func TestMetricsOfADataset(t *testing.T) {
	m := NewMetrics()
	name := types.NamespacedName{Namespace: "ns", Name: "v"}
	at := metav1.NewTime(now)
	m.Show(name, []flexlvmv1.VolumeStatus{{ID: "a", Replicas: 3, ReadyReplicas: 1, Nodes: []flexlvmv1.ReplicaStatus{
		{Claim: "v-a-0", Node: "node-0", State: flexlvmv1.ReplicaComplete, Progress: &flexlvmv1.Progress{Percent: 100, Files: 3, FilesTotal: 3, Bytes: 30, BytesTotal: 30}, TimeToReady: &metav1.Duration{Duration: 90 * time.Second}},
		{Claim: "v-a-1", Node: "node-1", State: flexlvmv1.ReplicaLoading, Progress: &flexlvmv1.Progress{Files: 1, FilesTotal: 3, Bytes: 10, BytesTotal: 30, BytesPerSecond: 5}},
		{Claim: "v-a-2", State: flexlvmv1.ReplicaWaiting},
	}}, {ID: "b", Replicas: 1, Nodes: []flexlvmv1.ReplicaStatus{
		{Claim: "v-b-0", Node: "node-0", State: flexlvmv1.ReplicaLoading, Progress: &flexlvmv1.Progress{}, StalledSince: &at},
	}}}, "b")
	got := gathered(t, m)
	for series, value := range map[string]float64{
		"load_stalled ns v a node-1": 0, "load_stalled ns v b node-0": 1,
		"loaded_bytes ns v a node-0": 30, "loaded_bytes ns v a node-1": 10, "loaded_bytes ns v b node-0": 0,
		"expected_bytes ns v a node-1": 30, "files ns v a node-1": 1, "expected_files ns v a node-1": 3,
		"replicas ns v a": 3, "ready_replicas ns v a": 1, "ready_replicas ns v b": 0,
		"failed ns v a": 0, "failed ns v b": 1,
		"throughput_bytes_per_second ns v a node-1": 5, "time_to_ready_seconds ns v a node-0": 90,
		"unlisted_replicas": 1, "unlisted_volumes": 0,
	} {
		require.Contains(t, got, series)
		require.InDelta(t, value, got[series], 0, series)
	}
	// There is no series without a value: no throughput of a complete replica, no time to ready of an
	// incomplete one.
	require.NotContains(t, got, "throughput_bytes_per_second ns v a node-0")
	require.NotContains(t, got, "load_stalled ns v a node-0")
	require.NotContains(t, got, "time_to_ready_seconds ns v a node-1")
	require.Len(t, got, 25)

	// The series are removed with the dataset.
	m.Show(name, nil)
	require.Equal(t, map[string]float64{"unlisted_replicas": 0, "unlisted_volumes": 0}, gathered(t, m))
}

// gathered returns the values of the series. A key is the name without flexlvm_dataset_, followed by the label
// values.
func gathered(t *testing.T, m *Metrics) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m)
	families, err := registry.Gather()
	require.NoError(t, err)
	out := map[string]float64{}
	for _, f := range families {
		for _, series := range f.GetMetric() {
			of := map[string]string{}
			for _, l := range series.GetLabel() {
				of[l.GetName()] = l.GetValue()
			}
			words := []string{strings.TrimPrefix(f.GetName(), "flexlvm_dataset_")}
			for _, label := range labelsOfNode {
				if value, has := of[label]; has {
					words = append(words, value)
				}
			}
			out[strings.Join(words, " ")] = series.GetGauge().GetValue()
		}
	}
	return out
}

// Thousands of datasets have a bounded number of series, the same ones in each scrape.
func TestMetricsAreBounded(t *testing.T) {
	m := NewMetrics()
	for i := range 300 {
		v := flexlvmv1.VolumeStatus{ID: "a", Replicas: 50}
		for n := range 50 {
			v.Nodes = append(v.Nodes, flexlvmv1.ReplicaStatus{Node: fmt.Sprintf("node-%d", n), State: flexlvmv1.ReplicaComplete, Progress: &flexlvmv1.Progress{}})
		}
		m.Show(types.NamespacedName{Namespace: "ns", Name: fmt.Sprintf("v-%d", i)}, []flexlvmv1.VolumeStatus{v})
	}
	got, count := gathered(t, m), map[string]int{}
	for series := range got {
		count[strings.Fields(series)[0]]++
	}
	require.Equal(t, maxSeries, count["loaded_bytes"])
	require.Equal(t, 300, count["replicas"])
	require.InDelta(t, 300*50-maxSeries, got["unlisted_replicas"], 0)
	require.Equal(t, got, gathered(t, m))

	// However many datasets a namespace has, the failed ones of other namespaces have series.
	for i := range 2 * maxSeries {
		m.Show(types.NamespacedName{Namespace: "first", Name: fmt.Sprintf("v-%d", i)}, []flexlvmv1.VolumeStatus{{ID: "a"}}, "a")
	}
	m.Show(types.NamespacedName{Namespace: "last", Name: "v"}, []flexlvmv1.VolumeStatus{{ID: "a"}, {ID: "b"}}, "b")
	got = gathered(t, m)
	require.InDelta(t, 1, got["failed last v b"], 0)
	require.InDelta(t, 300+2*maxSeries+2-maxSeries, got["unlisted_volumes"], 0)
	m.clear()
	require.Equal(t, map[string]float64{"unlisted_replicas": 0, "unlisted_volumes": 0}, gathered(t, m))
}
