package nodeagent_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/kube"
	"github.com/flexlvm/flexlvm/internal/nodeagent"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// soon bounds the waits of the tests. During a full build beside two virtual nodes, what otherwise takes a second
// took 20.
const soon = 2 * time.Minute

// TestMain runs more tests in parallel than there are processors, because a daemon mostly waits.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// A clock advances only by pass.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// A rig is a daemon on a node in memory, with an API server that injects faults.
type rig struct {
	t        testing.TB
	api      *fakeAPI
	engine   *fakeEngine
	clock    *clock
	config   nodeagent.Config
	registry *prometheus.Registry
	daemon   *nodeagent.Daemon
	// tune changes the daemon before it runs; nil: it is as in production.
	tune    func(*nodeagent.Daemon)
	ready   atomic.Int32
	back    func() // brings back a stopped API server
	markers int    // number of markers so far
	log     logr.Logger
}

// newRig has pool "flexlvm" of 100 GiB, with a healthy volume and its claim.
func newRig(t testing.TB) *rig {
	c := &clock{at: evictiontest.Now}
	r := &rig{
		t: t, api: newAPI(t), clock: c, log: klog.Background(),
		engine: &fakeEngine{now: c.now, pools: []inventory.Pool{{
			Name: "flexlvm", UUID: evictiontest.GroupUUID, Size: 100 * volume.GiB, Free: 100 * volume.GiB, Extent: 4 * volume.MiB,
			MetadataSize: 16 * volume.MiB, MetadataFree: 6 * volume.MiB,
		}}},
		config: nodeagent.Config{Node: "node-1", Policy: eviction.DefaultPolicy(), Interval: 100 * time.Millisecond, Now: c.now},
	}
	r.claimed("settled", 1)
	return r
}

// volume adds a volume that was created ten days ago, last used five hours ago and released four hours ago.
func (r *rig) volume(name string, state volume.State, size int, change ...func(*inventory.Volume)) {
	s := evictiontest.Scene{}
	s.Pool("flexlvm", 100)
	s.Volume(name, state, size, change...)
	r.engine.with(func() {
		r.engine.volumes = append(r.engine.volumes, s.View.Volumes...)
		r.engine.pools[0].Free -= s.View.Volumes[0].Allocated
		r.engine.pools[0].LVs++
	})
}

// claimed adds a volume in state ready and its PersistentVolume.
func (r *rig) claimed(name string, size int, change ...func(*corev1.PersistentVolume)) {
	r.volume(name, volume.Ready, size)
	r.api.put(object(name, size, change...))
}

// object returns a bound PersistentVolume that takes size GiB of its pool.
func object(name string, size int, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	bytes := volume.Bytes(size) * volume.GiB / 10 * 9
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID("uid-" + name),
			Labels:      map[string]string{pv.LabelNode: "node-1"},
			Finalizers:  []string{pv.Finalizer},
			Annotations: map[string]string{pv.AnnotationCharged: strconv.FormatInt(int64(volume.Bytes(size)*volume.GiB), 10)},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(int64(bytes), resource.BinarySI)},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef:                      &corev1.ObjectReference{Namespace: "db", Name: "data-" + name, UID: types.UID("uid-of-data-" + name)},
			PersistentVolumeSource: corev1.PersistentVolumeSource{FlexVolume: &corev1.FlexPersistentVolumeSource{
				Driver: pv.Driver, FSType: "xfs", Options: map[string]string{
					volume.OptionGroup: "flexlvm", volume.OptionSize: strconv.FormatInt(int64(bytes), 10), volume.OptionCluster: evictiontest.Cluster,
				},
			}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
	for _, c := range change {
		c(pv)
	}
	return pv
}

func pvReleased(pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumeReleased }

func pvRetain(pv *corev1.PersistentVolume) {
	pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
}

func pvDeleting(pv *corev1.PersistentVolume) {
	at := metav1.NewTime(evictiontest.Now)
	pv.DeletionTimestamp = &at
}

func annotated(name, value string) func(*corev1.PersistentVolume) {
	return func(pv *corev1.PersistentVolume) { pv.Annotations[name] = value }
}

// claimOf adds the claim of a PersistentVolume.
func (r *rig) claimOf(pv *corev1.PersistentVolume) {
	ref := pv.Spec.ClaimRef
	r.api.with(func() {
		r.api.claims[ref.Name] = &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID}}
	})
}

// start runs a daemon until the test ends or stop is called.
func (r *rig) start() (stop func()) {
	ctx, cancel := context.WithCancel(klog.NewContext(r.t.Context(), r.log))
	client := r.api.client()
	r.registry = prometheus.NewRegistry()
	daemon, err := nodeagent.New(r.config, r.engine, client, nodeagent.Outlets{Events: kube.NewRecorder(ctx, client, nodeagent.Component, r.config.Node), Metrics: nodeagent.NewMetrics(r.registry), Ready: func() { r.ready.Add(1) }})
	require.NoError(r.t, err)
	r.daemon = daemon
	if r.tune != nil {
		r.tune(daemon)
	}
	ended := make(chan error, 1)
	go func() { ended <- daemon.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(r.t, <-ended)
	})
	r.t.Cleanup(stop)
	return stop
}

func (r *rig) eventually(yes func() bool, why string, args ...any) {
	r.t.Helper()
	require.Eventually(r.t, yes, soon, 20*time.Millisecond, fmt.Sprintf(why, args...))
}

// rounds waits for n more complete rounds.
func (r *rig) rounds(n int) {
	r.t.Helper()
	until := r.engine.rounds() + n + 1
	r.eventually(func() bool { return r.engine.rounds() >= until }, "no more rounds")
}

// untilQuiet waits until the daemon runs no more rounds, and returns how many it has run. It counts polls, one
// second's worth of them, because on a busy machine polls are as late as the daemon is. After a round the daemon
// rests for as long as the round took before it starts a requested one. So the wait is longer by the duration of all
// rounds, and starts when each has ended: on such a machine it takes minutes.
func (r *rig) untilQuiet() (n int) {
	r.t.Helper()
	const every, enough = 20 * time.Millisecond, time.Second
	last, looks := -1, 0
	require.Eventually(r.t, func() bool {
		looks++
		ended, took := r.endedRounds()
		if n = r.engine.rounds(); n != last || n != ended {
			last, looks = n, 0
		}
		return time.Duration(looks)*every > enough+took
	}, 10*soon, every, "it is never quiet")
	return n
}

// endedRounds returns how many rounds have ended, and their total duration.
func (r *rig) endedRounds() (n int, took time.Duration) {
	families, err := r.registry.Gather()
	require.NoError(r.t, err)
	for _, f := range families {
		if f.GetName() == "flexlvm_gc_round_duration_seconds" {
			h := f.GetMetric()[0].GetHistogram()
			n, took = int(h.GetSampleCount()), time.Duration(h.GetSampleSum()*float64(time.Second))
		}
	}
	return n, took
}

// delivered waits until a round has observed everything that was put before. The watch delivers objects
// in order, and the last one is a PersistentVolume of a missing volume group, which gets an event.
func (r *rig) delivered() {
	r.t.Helper()
	r.markers++
	name := fmt.Sprintf("marker-%d", r.markers)
	r.api.put(object(name, 1, func(pv *corev1.PersistentVolume) { pv.Spec.FlexVolume.Options[volume.OptionGroup] = "elsewhere" }))
	r.eventually(func() bool {
		return slices.ContainsFunc(r.api.told("VolumeNeedsAttention"), func(text string) bool { return strings.Contains(text, name) })
	}, "%s is not seen", name)
}

// moreRounds waits until more rounds than before have run.
func (r *rig) moreRounds(than int) {
	r.t.Helper()
	r.eventually(func() bool { return r.engine.rounds() > than }, "nobody looks")
}

// calm waits until count stays the same for some rounds, and returns it. The effects of the start are over then.
func (r *rig) calm(count func() int) int {
	r.t.Helper()
	for end := time.Now().Add(soon); ; {
		was := count()
		r.rounds(2)
		if count() == was {
			return was
		}
		require.True(r.t, time.Now().Before(end), "it goes on and on")
	}
}

// status returns the status of the NodeStorage, or an empty one if there is none.
func (r *rig) status() flexlvmv1.NodeStorageStatus {
	if report := r.api.report(); report != nil {
		return report.Status
	}
	return flexlvmv1.NodeStorageStatus{}
}

// condition returns a condition of the NodeStorage.
func (r *rig) condition(kind string) metav1.Condition {
	if c := meta.FindStatusCondition(r.status().Conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}

func (r *rig) readyIs(reason string) func() bool {
	return func() bool { return r.condition(flexlvmv1.ConditionReady).Reason == reason }
}

// metricIs waits until the sum of a metric has a value. A round updates its metrics last, after its report and its
// events.
func (r *rig) metricIs(name string, want float64) {
	r.t.Helper()
	r.eventually(func() bool { return r.metric(name) == want }, "%s is not %v", name, want)
}

// failedRounds returns the number of rounds that failed to observe the node or the API. It reads the metrics once:
// between two reads, a round may end.
func (r *rig) failedRounds() float64 {
	return r.sumOf("flexlvm_gc_rounds_total", func(value string) bool { return value != "success" && value != "NotPublished" })
}

// metric returns the sum of a metric over all its labels, or over those with one of these values.
func (r *rig) metric(name string, values ...string) float64 {
	return r.sumOf(name, func(value string) bool { return len(values) == 0 || slices.Contains(values, value) })
}

// sumOf sums the series of a metric that have no labels, or a label whose value counts.
func (r *rig) sumOf(name string, counts func(value string) bool) (sum float64) {
	families, err := r.registry.Gather()
	require.NoError(r.t, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			in := len(m.GetLabel()) == 0
			for _, l := range m.GetLabel() {
				in = in || counts(l.GetValue())
			}
			if in {
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}
