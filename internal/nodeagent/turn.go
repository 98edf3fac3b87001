package nodeagent

import (
	"context"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/pause"
)

// turnPoll is how often a waiting daemon checks whether the other one has ended.
const turnPoll = time.Second

// awaitTurn waits until no other daemon works on this node; two may run for a moment while a DaemonSet is
// updated. It returns ours=false if ctx ends before.
func (d *Daemon) awaitTurn(ctx context.Context) (release func(), ours bool, err error) {
	if d.cfg.Turn == nil {
		return func() {}, true, nil
	}
	log := klog.FromContext(ctx)
	for {
		release, taken, err := d.cfg.Turn()
		if err != nil {
			return nil, false, fmt.Errorf("acquire the lock that allows one node daemon per node: %w", err)
		}
		if taken {
			if d.waits.Swap(false) {
				log.Info("The other node daemon has ended; this one continues")
			}
			d.roundEnded()
			d.out.Metrics.waits(false)
			return release, true, nil
		}
		if !d.waits.Swap(true) {
			log.Info("Another node daemon is running on this node; this one waits until it has ended")
			d.out.Metrics.waits(true)
		}
		if pause.For(ctx, turnPoll) != nil {
			return nil, false, nil
		}
	}
}

// Unready returns why the daemon is not ready, before the first successful round.
func (d *Daemon) Unready() string {
	if d.waits.Load() {
		return "another node daemon is running on this node; this one waits until it has ended"
	}
	return "no round has succeeded yet"
}
