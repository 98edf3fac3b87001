package provision

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

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
		go func() {
			defer close(ended)
			backgroundLoop{"datasets", func(context.Context) error {
				at = append(at, time.Since(began))
				return errors.New("the definition is gone")
			}}.keepRunning(ctx)
		}()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		require.Greater(t, len(at), 5)
		require.Equal(t, []time.Duration{0, time.Second, 3 * time.Second, 7 * time.Second}, at[:4])
		require.LessOrEqual(t, at[len(at)-1]-at[len(at)-2], time.Minute)
		require.Less(t, len(at), 15)
		stop()
		<-ended

		calls := 0
		backgroundLoop{"datasets", func(context.Context) error { calls++; return nil }}.keepRunning(t.Context())
		require.Equal(t, 1, calls, "it has ended by itself")
	})
}

// Claims are provisioned while the controller of datasets cannot run, and the end of the lease ends both.
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
