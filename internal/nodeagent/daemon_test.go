package nodeagent_test

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/nodeagent"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Room for a volume is made before its first mount, as soon as its PersistentVolume exists, and events on the node
// and on the claim give the reason.
func TestRoomForAPromise(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.config.Interval = time.Hour
	r.claimed("big", 70)
	r.claimed("given-up", 15)
	r.start()
	r.eventually(r.readyIs("Ready"), "not ready")

	r.claimOf(object("given-up", 15))
	r.api.put(object("given-up", 15, pvReleased))
	r.eventually(func() bool { return slices.Contains(r.engine.names(), "given-up unreferenced") }, "not released")
	r.clock.pass(time.Hour)
	r.api.put(object("new", 20))
	r.eventually(func() bool { return slices.Equal(r.engine.names(), []string{"big ready", "settled ready"}) }, "the interval is an hour; left: %v", r.engine.names())

	r.eventually(func() bool { return len(r.api.told("VolumeEvicted")) == 2 }, "the claim that is still there is not told: %v", r.api.told("VolumeEvicted"))
	told := r.api.told("VolumeEvicted")
	require.Contains(t, told[0], "Node/node-1: volume flexlvm/given-up was evicted (Promised): 1 volume promised on this node (new for claim db/data-new) needs 20 GiB")
	require.Contains(t, told[1], "PersistentVolumeClaim/data-given-up: ")
	r.api.with(func() {
		for _, e := range r.api.events {
			if e.InvolvedObject.Kind == "Node" {
				require.EqualValues(t, "node-1", e.InvolvedObject.UID, "kubectl describe node would not find it")
				require.Equal(t, metav1.NamespaceDefault, e.Namespace)
				require.Equal(t, nodeagent.Component, e.Source.Component)
			}
		}
	})
	r.eventually(func() bool { return len(r.status().Evictions) == 1 }, "not in the report")
	e := r.status().Evictions[0]
	require.Equal(t, []string{"flexlvm", "given-up", "Promised"}, []string{e.Pool, e.Name, e.Reason})
	require.EqualValues(t, 1, r.metric("flexlvm_evictions_total"))
}

func TestShortfall(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("big", 70)
	r.api.put(object("small", 10))
	large := object("large", 50)
	r.claimOf(large)
	r.api.put(large)
	r.start()
	r.eventually(func() bool { return r.condition("Shortfall").Status == metav1.ConditionTrue }, "the condition is %v", r.condition("Shortfall"))
	require.Contains(t, r.condition("Shortfall").Message, "31 GiB is missing")
	require.Equal(t, metav1.ConditionTrue, r.condition("DiskPressure").Status)
	r.eventually(func() bool { return len(r.api.told("Shortfall")) == 2 }, "told: %v", r.api.told("Shortfall"))
	require.Contains(t, r.api.told("Shortfall")[0], "Node/node-1: ")
	require.Contains(t, r.api.told("Shortfall")[1], "PersistentVolumeClaim/data-large: volume flexlvm/large waits for room: ")
	r.metricIs("flexlvm_pool_shortfall_bytes", float64(31*volume.GiB))
	r.toldNoMore("Shortfall")
	require.Len(t, r.api.told("Shortfall"), 2, "told in every round")

	r.api.with(func() {
		gone := r.api.volumes["large"]
		delete(r.api.volumes, "large")
		r.api.changed("DELETED", gone)
	})
	r.eventually(func() bool { return r.condition("Shortfall").Status == metav1.ConditionFalse }, "the condition stays")
}

// A pool that is full of volumes in use is under pressure, but no volume waits for room.
func TestFullOfVolumesInUse(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("big", 90)
	r.volume("given-up", volume.Unreferenced, 2)
	r.start()
	r.eventually(func() bool { return r.condition("DiskPressure").Status == metav1.ConditionTrue }, "no pressure")
	shortfall := r.condition("Shortfall")
	require.Equal(t, metav1.ConditionFalse, shortfall.Status)
	require.Equal(t, flexlvmv1.ReasonFullOfVolumesInUse, shortfall.Reason)
	require.Contains(t, shortfall.Message, "pool flexlvm is 93% full")
	r.rounds(2)
	require.Zero(t, r.metric("flexlvm_pool_shortfall_bytes"))
	require.Empty(t, r.api.told("Shortfall"))
	require.Contains(t, r.engine.names(), "given-up unreferenced", "it would not bring the pool to its low threshold")
}

// A volume that is too young for eviction is evicted as soon as it is old enough.
func TestRoomWhenOldEnough(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("big", 70)
	r.volume("young", volume.Unreferenced, 20, evictiontest.ReleasedAgo(time.Second))
	r.api.put(object("new", 20))
	r.start()
	r.eventually(func() bool { return r.condition("Shortfall").Status == metav1.ConditionTrue }, "no shortfall")
	require.Contains(t, r.engine.names(), "young unreferenced")
	r.clock.pass(3 * time.Minute)
	r.eventually(func() bool { return !slices.Contains(r.engine.names(), "young unreferenced") }, "not evicted")
}

// The report is created once, is owned by its node, and is written when it changes, and now and then while it does
// not.
func TestReport(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.volume("theirs", volume.Ready, 4, func(v *inventory.Volume) { v.Cluster = "another" })
	r.start()
	r.eventually(r.readyIs("Ready"), "not ready")
	report := r.api.report()
	require.Equal(t, "node-1", report.Name)
	require.Equal(t, []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "node-1", UID: "uid-of-node"}}, report.OwnerReferences)
	pool := report.Status.Pools[0]
	require.Equal(t, []any{"flexlvm", "100Gi", "95Gi", int32(5), int32(25), int32(1)}, []any{
		pool.Name, pool.Size.String(), pool.Free.String(), pool.UsedPercent, pool.MetadataUsedPercent, pool.ForeignVolumes,
	})
	require.Equal(t, int32(1), pool.VolumesByState["ready"])
	require.Equal(t, "95GiB", report.Status.Summary.Free)

	writes := func() int { return r.api.requests("put nodestorages") }
	written := r.calm(writes) // a round that does not see the last write yet writes again
	r.rounds(3)
	require.Equal(t, written, writes(), "written without a change")
	r.clock.pass(6 * time.Minute)
	r.eventually(func() bool { return writes() > written }, "nobody can tell that the daemon lives")

	r.api.with(func() {
		gone := r.api.storage
		r.api.storage = nil
		r.api.changed("DELETED", gone)
	})
	r.eventually(r.readyIs("Ready"), "it is not made again")
}

// Without the CRD, the daemon still evicts.
func TestNoCRD(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.full()
	r.api.fail(http.StatusNotFound, "get nodestorages", "list nodestorages", "watch nodestorages", "post nodestorages")
	r.start()
	r.eventually(func() bool { return !slices.Contains(r.engine.names(), "old unreferenced") }, "not evicted")
}

// An idle daemon reads LVM no more often than at its interval, and sends no requests to the API server until
// confirmEvery has passed.
func TestIdle(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, name := range []string{"a", "b", "c"} {
		r.claimed(name, 5)
	}
	r.volume("waiting", volume.Unreferenced, 5)
	r.config.Interval = time.Second
	r.start()
	revisions := r.calm(func() int { return r.api.requests("revision") })
	lists := r.api.requests("list persistentvolumes")
	cluster := r.api.requests("get namespaces")
	from, began := r.engine.rounds(), time.Now()
	r.rounds(3)
	took := time.Since(began)
	require.LessOrEqual(t, r.engine.rounds()-from, int(took/r.config.Interval)+1)
	require.Equal(t, revisions, r.api.requests("revision"))
	require.Equal(t, cluster, r.api.requests("get namespaces"))

	r.clock.pass(6 * time.Minute)
	r.rounds(1)
	require.Equal(t, revisions+1, r.api.requests("revision"), "watches are believed for ever")
	require.Equal(t, lists, r.api.requests("list persistentvolumes"))
}

// A change triggers a round immediately. A burst of changes triggers few rounds, and a change that does not concern
// the daemon triggers none.
func TestKicks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.config.Interval = time.Hour
	r.claimed("data", 5)
	r.start()
	r.eventually(r.readyIs("Ready"), "not ready")
	quiet := r.untilQuiet
	from := quiet()
	r.api.put(object("data", 5, annotated("somebody/wrote", "this")))
	require.Equal(t, from, quiet(), "a round for nothing")

	for range 50 {
		r.api.put(object("data", 5))
		r.api.put(object("data", 6))
	}
	r.delivered()
	require.Less(t, quiet()-from, 10, "a round for every change")

	from = quiet()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "pod", UID: "1"}}
	pod.Spec.NodeName, pod.Spec.Volumes = "node-1", []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-data"},
	}}}
	r.api.with(func() { r.api.changed("ADDED", pod) })
	r.moreRounds(from) // a pod that uses a volume of this node triggers a round
	require.Equal(t, from+1, quiet())
	other := pod.DeepCopy()
	other.Name, other.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = "other", "somebody-elses"
	r.api.with(func() { r.api.changed("ADDED", other) })
	require.Equal(t, from+1, quiet(), "a pod that is nobody's business")
}

func TestHeal(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("booted", 5)
	r.volume("half", volume.Creating, 5)
	r.api.put(object("half", 5))
	r.engine.with(func() {
		for i := range r.engine.volumes {
			if r.engine.volumes[i].Name == "booted" {
				r.engine.volumes[i].Active, r.engine.volumes[i].Problem = false, "inactive; its next mount activates it"
			}
		}
	})
	r.volume("waiting", volume.Unreferenced, 5, func(v *inventory.Volume) { v.Active = false })
	r.start()
	r.rounds(3)
	healed := r.engine.called("heal")
	slices.Sort(healed)
	require.Equal(t, []string{"heal flexlvm/booted", "heal flexlvm/half"}, healed, "once each, while the clock stands")
	require.Zero(t, r.status().OrphanCount)
	r.clock.pass(3 * time.Minute)
	r.rounds(2)
	require.Len(t, r.engine.called("heal flexlvm/half"), 2)
	require.Len(t, r.engine.called("heal flexlvm/booted"), 1)
}

// The backoff starts when Heal has returned, however long it took.
func TestHealThatTakesLong(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.volume("half", volume.Creating, 5)
	r.api.put(object("half", 5))
	r.engine.with(func() {
		r.engine.fault = func(call string) error {
			if call == "heal flexlvm/half" {
				r.clock.pass(time.Hour)
			}
			return nil
		}
	})
	r.start()
	r.rounds(3)
	require.Len(t, r.engine.called("heal flexlvm/half"), 1)
}

// Heal cannot replace a missing disk, so a degraded volume is reported immediately, for a person to act on.
func TestDegradedIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("data", 5)
	r.engine.with(func() {
		for i := range r.engine.volumes {
			if r.engine.volumes[i].Name == "data" {
				r.engine.volumes[i].Degraded, r.engine.volumes[i].Problem = true, "degraded: a copy is lacking"
			}
		}
	})
	r.start()
	r.eventually(func() bool { return len(r.status().Orphans) > 0 }, "it is not reported")
	require.Empty(t, r.engine.called("heal"))
	require.Empty(t, r.engine.called("remove"))
	require.Equal(t, "degraded: a copy is lacking", r.status().Orphans[0].Problem)
}

func TestHealthy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.eventually(r.readyIs("Ready"), "not ready")
	require.NoError(t, r.daemon.Healthy(nil))
	release, hangs := make(chan struct{}), make(chan struct{}, 100)
	r.engine.with(func() {
		r.engine.fault = func(call string) error {
			if call == "inventory" {
				hangs <- struct{}{}
				<-release
			}
			return nil
		}
	})
	<-hangs
	r.clock.pass(6 * time.Minute)
	require.ErrorContains(t, r.daemon.Healthy(nil), "no round has ended for 6m")
	close(release)
	r.eventually(func() bool { return r.daemon.Healthy(nil) == nil }, "not healthy again")
}

func TestMissingPrograms(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.config.Missing = func() []string { return []string{"mkfs.xfs"} }
	r.start()
	r.eventually(r.readyIs("ToolsMissing"), "the condition is %v", r.condition("Ready"))
	require.Contains(t, r.condition("Ready").Message, "mkfs.xfs")
}

func TestConfig(t *testing.T) {
	r := newRig(t)
	tests := map[string]struct {
		change func(*nodeagent.Config)
		err    string
	}{
		"no node":  {func(c *nodeagent.Config) { c.Node = "" }, "--node-name"},
		"interval": {func(c *nodeagent.Config) { c.Interval = 0 }, "--interval"},
		"policy":   {func(c *nodeagent.Config) { c.Policy.HighPercent = 101 }, "--high-threshold-percent"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			config := r.config
			tt.change(&config)
			_, err := nodeagent.New(config, r.engine, nil, nodeagent.Outlets{})
			require.ErrorContains(t, err, tt.err)
		})
	}
}

// Names and units follow the conventions of Prometheus.
func TestMetricNames(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.eventually(func() bool { return r.metric("flexlvm_gc_rounds_total") > 0 }, "no round") // the condition is written before the metric
	families, err := r.registry.Gather()
	require.NoError(t, err)
	require.Greater(t, len(families), 20)
	for _, f := range families {
		require.True(t, strings.HasPrefix(f.GetName(), "flexlvm_"), f.GetName())
		require.NotEmpty(t, f.GetHelp())
		require.Equal(t, f.GetType().String() == "COUNTER", strings.HasSuffix(f.GetName(), "_total"), f.GetName())
	}
	require.EqualValues(t, 100*volume.GiB, r.metric("flexlvm_pool_size_bytes"))
	require.EqualValues(t, 1, r.metric("flexlvm_volumes"))
}

// A program on the node can ask for a round that does not wait for the interval.
func TestCalled(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var at atomic.Int64
	r.config.Interval = time.Hour
	r.config.WokenAt = func() time.Time { return time.Unix(at.Load(), 0) }
	r.start()
	r.moreRounds(0)
	before := r.untilQuiet()
	at.Store(1)
	r.moreRounds(before)
}

// A thin pool is reported beside its group, and with its usage if LVM shows it.
func TestReportOfThinPools(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	thin := func(name volume.PoolName, known bool) inventory.Pool {
		p := inventory.Pool{Name: name, UUID: string(name), Size: 100 * volume.GiB, Free: 40 * volume.GiB, Extent: 4 * volume.MiB}
		p.Thin = &inventory.ThinPool{GroupUUID: evictiontest.GroupUUID, Known: known, Metadata: 100, MetadataUsed: 12}
		if !known {
			p.Thin.Unfit = "it is not active"
		}
		return p
	}
	r.engine.with(func() {
		r.engine.pools = append(r.engine.pools, thin("flexlvm/here", true), thin("flexlvm/lost", false))
	})
	r.start()
	r.eventually(r.readyIs("Ready"), "not ready")
	r.rounds(1) // metrics are updated last
	pools := r.api.report().Status.Pools
	require.Len(t, pools, 3)
	require.Nil(t, pools[0].ThinDataPercent)
	here, lost := pools[1], pools[2]
	require.Equal(t, []any{"flexlvm/here", "thin", int32(60), int32(12), ""}, []any{here.Name, here.Layout, *here.ThinDataPercent, *here.ThinMetadataPercent, here.Closed})
	require.Equal(t, "thin pool flexlvm/lost: it is not active", lost.Closed)
	require.Nil(t, lost.ThinDataPercent)
	require.Equal(t, "0", lost.Allocatable.String())
	require.InDelta(t, 12.0, r.metric("flexlvm_pool_thin_metadata_size_bytes")-r.metric("flexlvm_pool_thin_metadata_free_bytes"), 0)
	require.InDelta(t, 1, r.metric("flexlvm_pool_closed"), 0)
}
