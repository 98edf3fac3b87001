package provision

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A controller that fails is run again, more and more seldom, until the lease is lost.
func TestBackgroundLoopsAreRunAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var at []time.Duration
		began := time.Now()
		ended := make(chan struct{})
		failing := NewMetrics().controllerFailing("datasets")
		go func() {
			defer close(ended)
			backgroundLoop{"datasets", func(context.Context) error {
				at = append(at, time.Since(began))
				return errors.New("the definition is gone")
			}, failing}.keepRunning(ctx)
		}()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		require.Greater(t, len(at), 5)
		require.Equal(t, []time.Duration{0, time.Second, 3 * time.Second, 7 * time.Second}, at[:4])
		require.LessOrEqual(t, at[len(at)-1]-at[len(at)-2], time.Minute)
		require.Less(t, len(at), 15)
		require.Equal(t, 1.0, valueOf(t, failing))
		stop()
		<-ended

		calls := 0
		backgroundLoop{"datasets", func(context.Context) error { calls++; return nil }, failing}.keepRunning(t.Context())
		require.Equal(t, 1, calls, "it has ended by itself")
		require.Zero(t, valueOf(t, failing))
	})
}

func valueOf(t *testing.T, gauge prometheus.Gauge) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(gauge)
	families, err := registry.Gather()
	require.NoError(t, err)
	return families[0].GetMetric()[0].GetGauge().GetValue()
}

// A controller counts as failing while it waits to run again, and until it has run for longer than it takes to fill its
// caches, or to fail at that.
func TestFailingControllersAreShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		failing := NewMetrics().controllerFailing("datasets")
		calls := 0
		go func() {
			defer close(ended)
			backgroundLoop{"datasets", func(ctx context.Context) error {
				if calls++; calls <= 3 {
					time.Sleep(2 * time.Minute)
					return errors.New("its caches are not filled")
				}
				<-ctx.Done()
				return nil
			}, failing}.keepRunning(ctx)
		}()
		shown := func(after time.Duration) float64 {
			time.Sleep(after)
			synctest.Wait()
			return valueOf(t, failing)
		}
		require.Zero(t, shown(time.Minute))
		for range 8 { // three runs of two minutes, and a minute of the fourth
			require.Equal(t, 1.0, shown(time.Minute))
		}
		require.Equal(t, 4, calls)
		require.Zero(t, shown(2*time.Minute))
		stop()
		<-ended
	})
}

// Work goes on, and runs the controller of datasets again when it fails, until the lease ends.
func TestWorkGoesOnWithoutDatasets(t *testing.T) {
	client := fake.NewClientset()
	ctx, stop := context.WithCancel(t.Context())
	ended, called := make(chan error, 1), make(chan struct{})
	go func() {
		ended <- Work(ctx, Config{
			Client: client, Capacities: client, Loss: client, Storage: serveReports(t, *storageOf("node-1", volume.GiB)), Cluster: "cluster", Namespace: "flexlvm-system",
			Metrics: NewMetrics(), Workers: 1, NodeLossGrace: time.Hour,
			Datasets: func(ctx context.Context, _ Listers, _ record.EventRecorder) error {
				select {
				case called <- struct{}{}:
				case <-ctx.Done():
				}
				return errors.New("the definition is gone")
			},
		})
	}()
	for range 2 {
		select {
		case <-called:
		case err := <-ended:
			require.FailNow(t, "it has ended", "%v", err)
		case <-time.After(time.Minute):
			require.FailNow(t, "the controller is not run again")
		}
	}
	stop()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		require.FailNow(t, "it has not ended")
	}
}
