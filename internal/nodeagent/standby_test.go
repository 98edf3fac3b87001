package nodeagent_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/lock"
	"github.com/flexlvm/flexlvm/internal/nodeagent"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Of two daemons on a node, one works, and the other reports that it waits. It takes over when the first one ends, in
// whatever way: internal/lock tests a kill.
func TestOneOfTwoDaemonsWorks(t *testing.T) {
	t.Parallel()
	dir := lock.Dir(t.TempDir())
	turn := func() (func(), bool, error) { return dir.Try("daemon.lock", "node daemon") }
	first := newRig(t)
	first.config.Lock = turn
	stop := first.start()
	first.eventually(func() bool { return first.ready.Load() > 0 }, "the first does not work")
	require.EqualValues(t, 0, first.metric("flexlvm_gc_standby"))

	second := newRig(t)
	second.config.Lock = turn
	second.claimed("big", 70)
	second.volume("old", volume.Unreferenced, 15, evictiontest.LastUsed(50))
	end := second.start()
	second.eventually(func() bool { return second.metric("flexlvm_gc_standby") == 1 }, "the second does not say that it waits")
	require.Contains(t, second.daemon.Unready(), "another node daemon is running on this node")
	second.clock.pass(time.Hour)
	require.NoError(t, second.daemon.Healthy(nil), "it is not to be started again for that")
	require.Zero(t, second.engine.rounds())
	require.Zero(t, second.ready.Load())

	stop()
	second.eventually(func() bool { return second.ready.Load() > 0 }, "the second does not take over")
	require.EqualValues(t, 0, second.metric("flexlvm_gc_standby"))
	require.NotContains(t, second.daemon.Unready(), "another")
	second.eventually(func() bool { return len(second.engine.called("remove flexlvm/old")) > 0 }, "it does nothing")
	end()
	release, taken, err := turn()
	require.NoError(t, err)
	require.True(t, taken, "the node is free again")
	release()
}

func TestWaitingDaemonEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.config.Lock = func() (func(), bool, error) { return nil, false, nil }
	stop := r.start()
	r.eventually(func() bool { return r.metric("flexlvm_gc_standby") == 1 }, "it does not wait")
	stop() // requires that Run returns without an error
}

// If it cannot be determined whether another daemon works, this one does not work.
func TestLockThatCannotBeAcquired(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	daemon, err := nodeagent.New(nodeagent.Config{
		Node: "node-1", Policy: eviction.DefaultPolicy(), Interval: time.Minute,
		Lock: func() (func(), bool, error) { return nil, false, errors.New("only user 0 may write to it") },
	}, r.engine, r.api.client(), nodeagent.Outlets{Metrics: nodeagent.NewMetrics(prometheus.NewRegistry())})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	require.ErrorContains(t, daemon.Run(ctx), "only user 0 may write to it")
	require.Zero(t, r.engine.rounds())
}

// A dry run with other flags beside the daemon writes nothing and sends no events, because the daemon's report
// decides about the node's room. Without a daemon, the dry run's report is the node's.
func TestDryRunBesideTheDaemon(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.full()
	var taken atomic.Int32 // 0: yes, 1: unknown, 2: no
	dry := newRig(t)
	dry.api, dry.engine, dry.clock, dry.config.Now = r.api, r.engine, r.clock, r.config.Now
	dry.config.DryRun, dry.config.Policy.HighPercent, dry.config.Policy.LowPercent = true, 50, 10
	dry.config.Locked = func() (bool, error) {
		if taken.Load() == 1 {
			return false, errors.New("only user 0 may look")
		}
		return taken.Load() == 0, nil
	}
	stop := r.start()
	r.eventually(func() bool { return r.ready.Load() > 0 && len(r.api.told("VolumeEvicted")) > 0 }, "the daemon does not work")
	r.rounds(2)
	stop()
	report, written := r.api.report(), r.api.requests("put nodestorages")
	require.NotEmpty(t, report.Status.Evictions)

	r.api.put(object("astray", 1, func(pv *corev1.PersistentVolume) { pv.Spec.FlexVolume.Options[volume.OptionGroup] = "elsewhere" }))
	dry.start()
	dry.rounds(3)
	dry.eventually(func() bool { return dry.ready.Load() > 0 }, "its rounds fail")
	require.Equal(t, report, dry.api.report())
	require.Equal(t, written, dry.api.requests("put nodestorages"))
	taken.Store(1)
	dry.rounds(3)
	require.Equal(t, written, dry.api.requests("put nodestorages"), "on any doubt nothing is written")
	taken.Store(2)
	dry.eventually(dry.readyIs("DryRun"), "no report")
	require.Equal(t, report.Status.Evictions, dry.api.report().Status.Evictions)
	dry.delivered()
	require.Len(t, dry.api.told("VolumeNeedsAttention"), 1, "that of before was told beside the daemon")
}
