package dataset

import (
	"cmp"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/serve"
)

// maxSeries bounds the number of replicas of all datasets that have series of their own, and the number of
// volumes; the rest is only counted.
const maxSeries = 2000

// Metrics exposes the statuses of the datasets to Prometheus for as long as their VolumeManagers exist.
type Metrics struct {
	mu    sync.Mutex
	known map[types.NamespacedName]shown
}

// shown are the volumes of a VolumeManager; failed holds the ids of those that need a person to act.
type shown struct {
	volumes []flexlvmv1.VolumeStatus
	failed  []string
}

// The names begin with dataset, because Prometheus sets namespace and node to those of the provisioner itself.
var (
	labelsOfVolume = []string{"dataset_namespace", "dataset", "dataset_volume"}
	labelsOfNode   = append(slices.Clone(labelsOfVolume), "dataset_node")

	descReplicas        = prometheus.NewDesc("flexlvm_dataset_replicas", "Replicas of a dataset that are asked for.", labelsOfVolume, nil)
	descReady           = prometheus.NewDesc("flexlvm_dataset_ready_replicas", "Replicas of a dataset that can be used.", labelsOfVolume, nil)
	descFailed          = prometheus.NewDesc("flexlvm_dataset_failed", "1 where a person has to do something for a dataset: a load or upload failed permanently, or the request cannot be satisfied.", labelsOfVolume, nil)
	descUnlisted        = prometheus.NewDesc("flexlvm_dataset_unlisted_replicas", "Replicas of all datasets that have no series of their own, as there are too many.", nil, nil)
	descUnlistedVolumes = prometheus.NewDesc("flexlvm_dataset_unlisted_volumes", "Volumes of all datasets that have no series of their own, as there are too many.", nil, nil)
	descFiles           = prometheus.NewDesc("flexlvm_dataset_files", "Files (objects of the source) that are loaded on a node.", labelsOfNode, nil)
	descAllFiles        = prometheus.NewDesc("flexlvm_dataset_expected_files", "Files that a node is to have, as far as the source was listed.", labelsOfNode, nil)
	descBytes           = prometheus.NewDesc("flexlvm_dataset_loaded_bytes", "Bytes that are loaded on a node.", labelsOfNode, nil)
	descAllBytes        = prometheus.NewDesc("flexlvm_dataset_expected_bytes", "Bytes that a node is to have, as far as the source was listed.", labelsOfNode, nil)
	descThroughput      = prometheus.NewDesc("flexlvm_dataset_throughput_bytes_per_second", "What arrives on a node; only while a loader runs there.", labelsOfNode, nil)
	descStalled         = prometheus.NewDesc("flexlvm_dataset_load_stalled", "1 where nothing has arrived for 5 minutes although a loader runs; only while it runs.", labelsOfNode, nil)
	descTook            = prometheus.NewDesc("flexlvm_dataset_time_to_ready_seconds", "How long it took from the creation of a replica's claim until all was loaded.", labelsOfNode, nil)
)

// NewMetrics returns Metrics without datasets.
func NewMetrics() *Metrics {
	return &Metrics{known: map[types.NamespacedName]shown{}}
}

// Show replaces the volumes of a VolumeManager; failed holds the ids of those that have failed. Without volumes
// the series are removed.
func (m *Metrics) Show(name types.NamespacedName, volumes []flexlvmv1.VolumeStatus, failed ...string) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(volumes) == 0 {
		delete(m.known, name)
		return
	}
	m.known[name] = shown{volumes, failed}
}

// clear removes all series: another process exposes them now.
func (m *Metrics) clear() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.known)
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descReplicas, descReady, descFailed, descUnlisted, descUnlistedVolumes, descFiles, descAllFiles, descBytes, descAllBytes, descThroughput, descStalled, descTook} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	ranked := m.ranked()
	listed, unlisted := 0, int64(0)
	for i, v := range ranked {
		of := []string{v.of.Namespace, v.of.Name, v.ID}
		if i < maxSeries {
			gauge(descReplicas, float64(v.Replicas), of...)
			gauge(descReady, float64(v.ReadyReplicas), of...)
			gauge(descFailed, serve.Bool(v.failed), of...)
		}
		nodes := nodesOf(*v.VolumeStatus)
		nodes = nodes[:min(len(nodes), maxSeries-listed)]
		listed += len(nodes)
		unlisted += max(0, int64(v.Replicas)-int64(len(nodes)))
		for _, r := range nodes {
			ofReplica(r, func(d *prometheus.Desc, value float64) { gauge(d, value, append(slices.Clone(of), r.Node)...) })
		}
	}
	gauge(descUnlisted, float64(unlisted))
	gauge(descUnlistedVolumes, float64(max(0, len(ranked)-maxSeries)))
}

// ranked is a volume and its position in the order of series.
type ranked struct {
	*flexlvmv1.VolumeStatus
	of     types.NamespacedName
	failed bool
	place  int // in its namespace, failed volumes first
}

// ranked returns all volumes in the order in which they get series: the first of each namespace, then the
// second of each, and so on. So no namespace can take the series of another, and the same volumes are left out
// each time.
func (m *Metrics) ranked() []ranked {
	var out []ranked
	for name, of := range m.known {
		for i := range of.volumes {
			v := &of.volumes[i]
			out = append(out, ranked{VolumeStatus: v, of: name, failed: slices.Contains(of.failed, v.ID)})
		}
	}
	slices.SortFunc(out, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(serve.Bool(b.failed), serve.Bool(a.failed)), cmp.Compare(a.of.Name, b.of.Name), cmp.Compare(a.ID, b.ID))
	})
	placed := map[string]int{}
	for i := range out {
		out[i].place = placed[out[i].of.Namespace]
		placed[out[i].of.Namespace]++
	}
	slices.SortStableFunc(out, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(a.place, b.place), cmp.Compare(a.of.Namespace, b.of.Namespace))
	})
	return out
}

// nodesOf returns the replicas of a volume that are on a node, one for each node.
func nodesOf(v flexlvmv1.VolumeStatus) (out []flexlvmv1.ReplicaStatus) {
	seen := map[string]bool{}
	for _, r := range v.Nodes {
		if r.Node != "" && r.Progress != nil && !seen[r.Node] {
			seen[r.Node] = true
			out = append(out, r)
		}
	}
	return out
}

func ofReplica(r flexlvmv1.ReplicaStatus, gauge func(*prometheus.Desc, float64)) {
	gauge(descFiles, float64(r.Progress.Files))
	gauge(descAllFiles, float64(r.Progress.FilesTotal))
	gauge(descBytes, float64(r.Progress.Bytes))
	gauge(descAllBytes, float64(r.Progress.BytesTotal))
	if at := loading(r); at != nil {
		gauge(descThroughput, float64(at.BytesPerSecond))
		gauge(descStalled, serve.Bool(r.StalledSince != nil))
	}
	if r.TimeToReady != nil {
		gauge(descTook, r.TimeToReady.Seconds())
	}
}

// loading returns the progress of a replica's running loader, whether it fetches the first version or another;
// nil if none runs.
func loading(r flexlvmv1.ReplicaStatus) *flexlvmv1.Progress {
	if isLoading(r.State) {
		return r.Progress
	}
	return r.Refresh
}
