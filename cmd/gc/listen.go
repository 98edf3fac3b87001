package main

import (
	"context"
	"errors"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/serve"
)

// listenPoll is the interval at which to retry an address that another daemon uses.
const listenPoll = time.Second

// turn acquires the node for one daemon, like nodeagent.Config.Turn.
type turn func() (release func(), taken bool, err error)

// listen binds the addresses of this daemon. If they are in use while another node daemon works on this node,
// they are most likely that daemon's, so listen waits until that daemon has ended and serves nothing until
// then. A dry run has no turn and does not wait.
func listen(ctx context.Context, node turn, take func() (serve.Addresses, error)) (serve.Addresses, error) {
	for told := false; ; told = true {
		other := node.another()
		at, err := take()
		if !errors.Is(err, syscall.EADDRINUSE) || !other {
			return at, err
		}
		if !told {
			klog.FromContext(ctx).Info("Another node daemon works on this node and has the addresses of this one, which waits until it has ended", "err", err.Error())
		}
		poll := time.NewTimer(listenPoll)
		select {
		case <-ctx.Done():
			poll.Stop()
			return at, err
		case <-poll.C:
		}
	}
}

// another reports whether another daemon has acquired the node. If that cannot be determined, the daemon
// reports the error itself when it starts.
func (t turn) another() bool {
	if t == nil {
		return false
	}
	release, taken, err := t()
	if taken {
		release()
	}
	return err == nil && !taken
}
