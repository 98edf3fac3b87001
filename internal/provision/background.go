package provision

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/pause"
)

// runsAfter is how long a controller has to run until it counts as working. Its caches are filled within two minutes,
// or it fails.
const runsAfter = 3 * time.Minute

// restartBackoff is how long to wait before a controller that has failed is run again.
var restartBackoff = wait.Backoff{Duration: time.Second, Factor: 2, Steps: 10, Cap: time.Minute}

// A backgroundLoop is a controller that runs concurrently with the library. Each call of run builds it anew.
type backgroundLoop struct {
	name    string
	run     func(context.Context) error
	failing prometheus.Gauge
}

// backgroundLoops returns the controllers that run concurrently with the library.
func (c Config) backgroundLoops(seen Listers, events record.EventRecorder, books *ledger.Ledger) (out []backgroundLoop) {
	add := func(name string, run func(context.Context) error) {
		out = append(out, backgroundLoop{name, run, c.Metrics.controllerFailing(name)})
	}
	if c.Datasets != nil {
		add("datasets", func(ctx context.Context) error { return c.Datasets(ctx, seen, events) })
	}
	if c.Snapshots != nil {
		add("snapshots", func(ctx context.Context) error { return c.Snapshots(ctx, seen, books) })
	}
	return out
}

// keepRunning runs the loop until ctx ends. If it fails, for example because the definition of VolumeManagers is gone
// or the provisioner may not list them, claims are provisioned nevertheless, and the loop is run again with backoff.
func (l backgroundLoop) keepRunning(ctx context.Context) {
	backoff := restartBackoff
	for {
		works := time.AfterFunc(runsAfter, func() { l.failing.Set(0) })
		err := l.run(ctx)
		if !works.Stop() { // it has worked
			backoff = restartBackoff
		}
		if err == nil || ctx.Err() != nil {
			l.failing.Set(0)
			return
		}
		l.failing.Set(1)
		after := backoff.Step()
		klog.FromContext(ctx).Error(err, "A controller of the provisioner has failed and is run again; claims are provisioned meanwhile", "controller", l.name, "after", after.String())
		if pause.For(ctx, after) != nil {
			return
		}
	}
}
