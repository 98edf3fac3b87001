package nodeagent_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/lock"
	"github.com/flexlvm/flexlvm/internal/nodeagent"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Of two daemons of one node one works, and the other says that it waits. It takes over
// when the first has ended, however that ends: internal/lock has the test with a kill.
func TestOneOfTwoDaemonsWorks(t *testing.T) {
	t.Parallel()
	dir := lock.Dir(t.TempDir())
	turn := func() (func(), bool, error) { return dir.Try("daemon.lock", "node daemon") }
	first := newRig(t)
	first.config.Turn = turn
	stop := first.start()
	first.eventually(func() bool { return first.ready.Load() > 0 }, "the first does not work")
	require.EqualValues(t, 0, first.metric("flexlvm_gc_standby"))

	second := newRig(t)
	second.config.Turn = turn
	second.claimed("big", 70)
	second.volume("old", volume.Unreferenced, 15, evictiontest.LastUsed(50))
	end := second.start()
	second.eventually(func() bool { return second.metric("flexlvm_gc_standby") == 1 }, "the second does not say that it waits")
	require.Contains(t, second.daemon.Unready(), "another node daemon works on this node")
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
	r.config.Turn = func() (func(), bool, error) { return nil, false, nil }
	stop := r.start()
	r.eventually(func() bool { return r.metric("flexlvm_gc_standby") == 1 }, "it does not wait")
	stop() // requires that Run returns without an error
}

// Where it cannot be told whether another works, this one does not.
func TestTurnThatCannotBeTaken(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	daemon, err := nodeagent.New(nodeagent.Config{
		Node: "node-1", Policy: eviction.DefaultPolicy(), Interval: time.Minute,
		Turn: func() (func(), bool, error) { return nil, false, errors.New("only user 0 may write to it") },
	}, r.engine, r.api.client(), nodeagent.Outlets{Metrics: nodeagent.NewMetrics(prometheus.NewRegistry())})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	require.ErrorContains(t, daemon.Run(ctx), "only user 0 may write to it")
	require.Zero(t, r.engine.rounds())
}
