package main

import (
	"context"
	"errors"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/serve"
)

// listenPoll is how often to try an address again that another daemon has.
const listenPoll = time.Second

// turn takes the node for one daemon, as nodeagent.Config.Turn does.
type turn func() (release func(), taken bool, err error)

// listen takes the addresses of this daemon. Where they are in use while another node
// daemon works on this node, it is that one that has them, as a rule: then it waits, and
// until that one ends this one answers nobody. A dry run has no turn, and waits for none.
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

// another reports whether another daemon has the node. Where that cannot be told, the
// daemon itself says so when it begins.
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
