package nodeagent

import (
	"context"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/pause"
)

// lockPoll is how often a waiting daemon checks whether the other one has ended.
const lockPoll = time.Second

// awaitLock waits until no other daemon works on this node; two may run for a moment while a DaemonSet is
// updated. It returns acquired=false if ctx ends before.
func (d *Daemon) awaitLock(ctx context.Context) (release func(), acquired bool, err error) {
	if d.cfg.Lock == nil {
		return func() {}, true, nil
	}
	log := klog.FromContext(ctx)
	for {
		release, acquired, err := d.cfg.Lock()
		if err != nil {
			return nil, false, fmt.Errorf("acquire the lock that allows one node daemon per node: %w", err)
		}
		if acquired {
			if d.standby.Swap(false) {
				log.Info("The other node daemon has ended; this one continues")
			}
			d.roundEnded()
			d.out.Metrics.setStandby(false)
			return release, true, nil
		}
		if !d.standby.Swap(true) {
			log.Info("Another node daemon is running on this node; this one waits until it has ended")
			d.out.Metrics.setStandby(true)
		}
		if pause.For(ctx, lockPoll) != nil {
			return nil, false, nil
		}
	}
}

// Unready returns why the daemon is not ready, before the first successful round.
func (d *Daemon) Unready() string {
	if d.standby.Load() {
		return "another node daemon is running on this node; this one waits until it has ended"
	}
	return "no round has succeeded yet"
}
