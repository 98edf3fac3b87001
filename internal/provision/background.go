package provision

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/pause"
)

// A backgroundLoop is a controller that runs concurrently with the library. Each call of run builds it anew.
type backgroundLoop struct {
	name string
	run  func(context.Context) error
}

// backgroundLoops returns the controllers that run concurrently with the library.
func (c Config) backgroundLoops(seen Listers, events record.EventRecorder, books *ledger.Ledger) (out []backgroundLoop) {
	if c.Datasets != nil {
		out = append(out, backgroundLoop{"datasets", func(ctx context.Context) error { return c.Datasets(ctx, seen, events) }})
	}
	if c.Snapshots != nil {
		out = append(out, backgroundLoop{"snapshots", func(ctx context.Context) error { return c.Snapshots(ctx, seen, books) }})
	}
	return out
}

// keepRunning runs the loop until ctx ends. If it fails, for example because the definition of VolumeManagers is gone
// or the provisioner may not list them, claims are provisioned nevertheless, and the loop is run again with backoff.
func (l backgroundLoop) keepRunning(ctx context.Context) {
	backoff := wait.Backoff{Duration: time.Second, Factor: 2, Steps: 10, Cap: time.Minute}
	for {
		err := l.run(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		after := backoff.Step()
		klog.FromContext(ctx).Error(err, "A controller of the provisioner has failed and is run again; claims are provisioned meanwhile", "controller", l.name, "after", after.String())
		if pause.For(ctx, after) != nil {
			return
		}
	}
}
