package nodeagent

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/serve"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Metrics holds the daemon's Prometheus metrics.
type Metrics struct {
	pools          map[string]*prometheus.GaugeVec
	known          []volume.PoolName // the pools that have metrics; used by the goroutine of the rounds only
	volumes        *prometheus.GaugeVec
	orphans        prometheus.Gauge
	foreign        prometheus.Gauge
	problems       prometheus.Gauge
	degraded       prometheus.Gauge
	attention      prometheus.Gauge
	blocked        prometheus.Gauge
	orphansBlocked prometheus.Gauge
	standby        prometheus.Gauge
	toolsMissing   prometheus.Gauge
	limited        prometheus.Gauge
	unlimited      prometheus.Gauge
	lastRound      prometheus.Gauge
	rounds         *prometheus.CounterVec
	roundTime      prometheus.Histogram
	evictions      *prometheus.CounterVec
	failed         *prometheus.CounterVec
	releases       *prometheus.CounterVec
	replicaSteps   *prometheus.CounterVec
	commands       *prometheus.HistogramVec
	trims          *prometheus.CounterVec
	trimBytes      *prometheus.CounterVec
	found          *prometheus.GaugeVec
	sizes          *prometheus.GaugeVec
}

// poolGauges are the gauges of each pool, with their help texts.
var poolGauges = map[string]string{
	"flexlvm_pool_size_bytes":                  "Size of the pool.",
	"flexlvm_pool_free_bytes":                  "Free bytes of the pool, which no volume holds.",
	"flexlvm_pool_reclaimable_bytes":           "Bytes of volumes that may be evicted now.",
	"flexlvm_pool_promised_bytes":              "Bytes that PersistentVolumes of this node still need.",
	"flexlvm_pool_allocatable_bytes":           "Total bytes that PersistentVolumes may be charged.",
	"flexlvm_pool_charged_bytes":               "Total bytes that PersistentVolumes are charged.",
	"flexlvm_pool_thin_unwritten_bytes":        "Bytes that volumes of a thin pool may still allocate: their full size minus what they hold, plus what overwriting blocks shared with copies and snapshots allocates.",
	"flexlvm_pool_shortfall_bytes":             "Bytes that are still missing after all possible evictions.",
	"flexlvm_pool_metadata_size_bytes":         "Size of LVM's metadata area, of which only half is usable. It cannot be enlarged.",
	"flexlvm_pool_metadata_free_bytes":         "Free bytes of the usable half of LVM's metadata area.",
	"flexlvm_pool_thin_metadata_size_bytes":    "Size of the metadata of a thin pool.",
	"flexlvm_pool_thin_metadata_free_bytes":    "Free bytes of the metadata of a thin pool.",
	"flexlvm_pool_closed":                      "1 while no new volume is promised in the pool.",
	"flexlvm_pool_missing_devices":             "Devices of the volume group that LVM cannot find.",
	"flexlvm_pool_foreign_volumes":             "Logical volumes in the pool that are not flexlvm's, or another cluster's.",
	"flexlvm_pool_fullest_snapshot_ratio":      "How full the fullest copy-on-write snapshot is that may overflow, from 0 to 1; 1 if one has.",
	"flexlvm_pool_last_trim_timestamp_seconds": "When a volume of the pool was last trimmed, also by an earlier process.",
	"flexlvm_pool_pressure":                    "1 while the pool is over its high threshold or has too little free room for what is promised.",
}

// NewMetrics creates the metrics and registers them.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		pools:          map[string]*prometheus.GaugeVec{},
		volumes:        prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "flexlvm_volumes", Help: "Volumes of this cluster, by pool and state."}, []string{"pool", "state"}),
		orphans:        gauge("flexlvm_orphans", "Volumes of this cluster without a PersistentVolume."),
		foreign:        gauge("flexlvm_foreign_volumes", "Volumes of flexlvm that belong to another cluster."),
		problems:       gauge("flexlvm_problem_volumes", "Volumes of flexlvm that need attention, for example because of invalid tags."),
		degraded:       gauge("flexlvm_degraded_volumes", "Mirrored volumes of flexlvm that have lost a copy, that have one that is not complete, whose copies differ, or that must not be used because their copies are out of date."),
		attention:      gauge("flexlvm_attention_persistentvolumes", "PersistentVolumes of this node that need manual action."),
		blocked:        gauge("flexlvm_gc_blocked", "1 while nothing is evicted because the API server seems to have lost PersistentVolumes."),
		orphansBlocked: gauge("flexlvm_gc_orphan_eviction_blocked", "1 while no orphan is evicted, though --evict-orphans is set, because the API server has gone back in time."),
		standby:        gauge("flexlvm_gc_standby", "1 while another node daemon works on this node and this one waits for it to end."),
		toolsMissing:   gauge("flexlvm_gc_tools_missing", "1 while the host lacks programs that flexlvm needs, such as LVM's, and no PersistentVolume of a volume that flexlvm creates is on the node, so no volume waits for its rounds."),
		limited:        gauge("flexlvm_io_limits_in_force", "Volumes of pods whose IO is limited as their PersistentVolume sets."),
		unlimited:      gauge("flexlvm_io_limits_not_applied", "PersistentVolumes whose limits on IO are not in force for a pod that uses them."),
		lastRound:      gauge("flexlvm_gc_last_successful_round_timestamp_seconds", "When a round last succeeded."),
		rounds:         counters("flexlvm_gc_rounds_total", "Rounds, by result: success, NotPublished where the report could not be written, or the reason of the condition Ready.", "result"),
		roundTime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "flexlvm_gc_round_duration_seconds", Help: "Duration of a round in seconds.",
			Buckets: []float64{.05, .1, .2, .5, 1, 2, 5, 10, 30, 60},
		}),
		evictions:    counters("flexlvm_evictions_total", "Evicted volumes, by reason.", "reason"),
		failed:       counters("flexlvm_gc_failures_total", "Failed steps (release, removal, trim), each of which is retried.", "step"),
		releases:     counters("flexlvm_releases_total", "Volumes whose PersistentVolume was released, by the state that they got.", "state"),
		replicaSteps: counters("flexlvm_replica_eviction_steps_total", "Steps (ask, confirm, withdraw) in the eviction of replicas of datasets.", "step"),
		trims:        counters("flexlvm_trims_total", "Completed trims of volumes.", "pool"),
		trimBytes:    counters("flexlvm_trim_discarded_bytes_total", "Bytes that file systems have discarded in trims: all that is free in them, so more than the pool gets back.", "pool"),
		found:        prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "flexlvm_discovered_disks", Help: "File systems and disks that the VolumeDiscovery finds on the node, by state."}, []string{"state"}),
		sizes:        prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "flexlvm_nfs_sizes", Help: "Volumes in an NFS export of the node whose size is to be enforced, by state: enforced or unenforced."}, []string{"export", "state"}),
		commands: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "flexlvm_command_duration_seconds", Help: "Duration of the host's programs (LVM and others) in seconds.",
			Buckets: []float64{.01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60, 120},
		}, []string{"command", "result"}),
	}
	for name, help := range poolGauges {
		m.pools[name] = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"pool"})
		registerer.MustRegister(m.pools[name])
	}
	registerer.MustRegister(m.volumes, m.orphans, m.foreign, m.problems, m.degraded, m.attention, m.blocked, m.orphansBlocked, m.standby, m.toolsMissing, m.limited, m.unlimited,
		m.lastRound, m.rounds, m.roundTime, m.evictions, m.failed, m.releases, m.replicaSteps, m.commands, m.trims, m.trimBytes, m.found, m.sizes)
	m.zero()
	m.discovered(nil)
	return m
}

// notPublished is the result of a round whose report could not be written.
const notPublished = "NotPublished"

// zero creates the counters with value 0, because a rate needs a first value.
func (m *Metrics) zero() {
	for _, r := range []eviction.Reason{eviction.ReasonImmediate, eviction.ReasonMaxAge, eviction.ReasonPromised, eviction.ReasonHighThreshold, eviction.ReasonHeadroom, eviction.ReasonLVMMetadata, eviction.ReasonOrphan, eviction.ReasonReplica} {
		m.evictions.WithLabelValues(string(r))
	}
	for _, s := range []volume.State{volume.Unreferenced, volume.Retained} {
		m.releases.WithLabelValues(string(s))
	}
	for _, step := range []eviction.Step{eviction.StepAsk, eviction.StepConfirm, eviction.StepWithdraw} {
		m.replicaSteps.WithLabelValues(string(step))
	}
	for _, step := range []string{"release", "removal", "trim"} {
		m.failed.WithLabelValues(step)
	}
	for _, result := range []string{"success", notPublished, reasonAPI, reasonLVM} {
		m.rounds.WithLabelValues(result)
	}
}

func (m *Metrics) evicted(r eviction.Reason) { m.evictions.WithLabelValues(string(r)).Inc() }
func (m *Metrics) moved(s eviction.Step)     { m.replicaSteps.WithLabelValues(string(s)).Inc() }
func (m *Metrics) released(s volume.State)   { m.releases.WithLabelValues(string(s)).Inc() }
func (m *Metrics) releaseFailed()            { m.failed.WithLabelValues("release").Inc() }
func (m *Metrics) removalFailed()            { m.failed.WithLabelValues("removal").Inc() }

func (m *Metrics) trimFailed() { m.failed.WithLabelValues("trim").Inc() }

func (m *Metrics) trimmed(pool volume.PoolName, discarded volume.Bytes, toTheEnd bool) {
	m.trimBytes.WithLabelValues(string(pool)).Add(float64(discarded))
	if toTheEnd {
		m.trims.WithLabelValues(string(pool)).Inc()
	}
}

func (m *Metrics) setSizes(export string, asked, held int) {
	m.sizes.WithLabelValues(export, "enforced").Set(float64(held))
	m.sizes.WithLabelValues(export, "unenforced").Set(float64(asked - held))
}

func (m *Metrics) setStandby(yes bool) { m.standby.Set(serve.Bool(yes)) }

func (m *Metrics) setToolsMissing(yes bool) { m.toolsMissing.Set(serve.Bool(yes)) }

func (m *Metrics) ioLimited(applied, failed int) {
	m.limited.Set(float64(applied))
	m.unlimited.Set(float64(failed))
}

// round records a round that has ended. What a failed round has not observed keeps its last value. Prometheus
// may scrape meanwhile, so no series is deleted that is set again, and the round is counted last.
//
// A round whose report could not be written counts as failed, because nobody can see its observations.
func (m *Metrics) round(f observation, err, published error, took time.Duration) {
	m.roundTime.Observe(took.Seconds())
	if err != nil {
		m.rounds.WithLabelValues(reasonOf(err)).Inc()
		return
	}
	m.observed(f)
	if published != nil {
		m.rounds.WithLabelValues(notPublished).Inc()
		return
	}
	m.lastRound.Set(float64(f.at.UnixNano()) / 1e9)
	m.rounds.WithLabelValues("success").Inc()
}

// observed sets the gauges of a round's observations.
func (m *Metrics) observed(f observation) {
	was := m.known
	m.known = nil
	for _, p := range f.result.Pools {
		m.pool(p)
		m.lastTrim(p.Pool.Name, f.inventory.Volumes)
		m.pools["flexlvm_pool_fullest_snapshot_ratio"].WithLabelValues(string(p.Pool.Name)).Set(fullest(p.Pool.Name, f.snapshotStores()))
		m.known = append(m.known, p.Pool.Name)
	}
	for _, name := range was {
		if !slices.Contains(m.known, name) {
			m.forget(name)
		}
	}
	m.orphans.Set(float64(len(f.result.Orphans)))
	m.foreign.Set(float64(len(f.result.Foreign)))
	m.problems.Set(float64(len(f.result.Problems)))
	m.degraded.Set(float64(degraded(f.result.Problems)))
	m.attention.Set(float64(len(needAttention(f))))
	m.blocked.Set(serve.Bool(f.result.Blocked != ""))
	m.orphansBlocked.Set(serve.Bool(f.result.OrphansBlocked != ""))
}

// forget deletes the metrics of a pool.
func (m *Metrics) forget(pool volume.PoolName) {
	for _, g := range m.pools {
		g.DeleteLabelValues(string(pool))
	}
	m.trims.DeleteLabelValues(string(pool))
	m.trimBytes.DeleteLabelValues(string(pool))
	m.volumes.DeletePartialMatch(prometheus.Labels{"pool": string(pool)})
}

func (m *Metrics) pool(p eviction.PoolResult) {
	name := string(p.Pool.Name)
	for gauge, value := range map[string]float64{
		"flexlvm_pool_size_bytes":          float64(p.Pool.Size),
		"flexlvm_pool_free_bytes":          float64(p.Pool.Free),
		"flexlvm_pool_reclaimable_bytes":   float64(p.Reclaimable),
		"flexlvm_pool_promised_bytes":      float64(p.Promised),
		"flexlvm_pool_shortfall_bytes":     float64(p.Shortfall),
		"flexlvm_pool_metadata_size_bytes": float64(p.Pool.MetadataSize),
		"flexlvm_pool_metadata_free_bytes": float64(p.Pool.MetadataFree),
		"flexlvm_pool_missing_devices":     float64(p.Pool.Missing),
		"flexlvm_pool_foreign_volumes":     float64(p.Foreign),
		"flexlvm_pool_pressure":            serve.Bool(p.Pressure),
		"flexlvm_pool_closed":              serve.Bool(p.Closed != ""),
	} {
		m.pools[gauge].WithLabelValues(name).Set(value)
	}
	known := !p.Pool.ContentUnknown()
	m.setIf(known, "flexlvm_pool_allocatable_bytes", name, p.Allocatable)
	m.setIf(known, "flexlvm_pool_charged_bytes", name, p.Charged)
	var thin inventory.ThinPool
	if p.Pool.Thin != nil {
		thin = *p.Pool.Thin
	}
	m.setIf(thin.Known, "flexlvm_pool_thin_metadata_size_bytes", name, thin.Metadata)
	m.setIf(thin.Known, "flexlvm_pool_thin_metadata_free_bytes", name, thin.Metadata-thin.MetadataUsed)
	m.setIf(thin.Known, "flexlvm_pool_thin_unwritten_bytes", name, p.Unwritten+p.Shared)
	for _, s := range []volume.State{volume.Creating, volume.Ready, volume.Unreferenced, volume.Retained, volume.Doomed} {
		m.volumes.WithLabelValues(name, string(s)).Set(float64(p.ByState[s]))
	}
}

// setIf sets a gauge of a pool if its value is known, and deletes it otherwise.
func (m *Metrics) setIf(known bool, gauge, pool string, value volume.Bytes) {
	if !known {
		m.pools[gauge].DeleteLabelValues(pool)
		return
	}
	m.pools[gauge].WithLabelValues(pool).Set(float64(value))
}

// lastTrim sets the trim metrics of a pool. A pool that was never trimmed has no timestamp.
func (m *Metrics) lastTrim(pool volume.PoolName, all []inventory.Volume) {
	var last time.Time
	for i := range all {
		if all[i].Pool() == pool && all[i].LastTrimmed.After(last) {
			last = all[i].LastTrimmed
		}
	}
	m.trims.WithLabelValues(string(pool))
	m.trimBytes.WithLabelValues(string(pool))
	gauge := m.pools["flexlvm_pool_last_trim_timestamp_seconds"]
	if last.IsZero() {
		gauge.DeleteLabelValues(string(pool))
		return
	}
	gauge.WithLabelValues(string(pool)).Set(float64(last.UnixNano()) / 1e9)
}

// fullest returns how full the fullest snapshot store of a pool is, from 0 to 1.
func fullest(pool volume.PoolName, all []snapshotStore) (ratio float64) {
	for _, s := range all {
		switch {
		case s.volume.Pool() != pool:
		case s.volume.Overflowed:
			ratio = 1
		default:
			ratio = max(ratio, float64(s.volume.Stored)/float64(max(s.volume.Allocated, 1)))
		}
	}
	return ratio
}

// degraded counts the mirrors that have lost a copy, have an incomplete one, or whose copies differ, and those that must
// not be used because their copies are out of date.
func degraded(problems []inventory.Volume) (n int) {
	for i := range problems {
		if problems[i].Degraded || problems[i].Outdated {
			n++
		}
	}
	return n
}

// CommandDone is a command.Observer.
func (m *Metrics) CommandDone(program string, took time.Duration, err error) {
	how := "success"
	if err != nil {
		how = "failure"
	}
	m.commands.WithLabelValues(program, how).Observe(took.Seconds())
}
