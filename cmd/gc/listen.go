package main

import (
	"context"
	"errors"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/pause"
	"github.com/flexlvm/flexlvm/internal/serve"
)

// listenPoll is the interval at which to retry an address that another daemon uses.
const listenPoll = time.Second

// listen binds the addresses of this daemon. If they are in use while another node daemon works on this node,
// they are most likely that daemon's, so listen waits until that daemon has ended and serves nothing until
// then. works reports whether another daemon works; it is nil in a dry run, which does not wait.
func listen(ctx context.Context, works func() (bool, error), take func() (serve.Addresses, error)) (serve.Addresses, error) {
	for told := false; ; told = true {
		other := another(works)
		at, err := take()
		if !errors.Is(err, syscall.EADDRINUSE) || !other {
			return at, err
		}
		if !told {
			klog.FromContext(ctx).Info("Another node daemon works on this node and uses the addresses of this one, which waits until it has ended", "err", err.Error())
		}
		if pause.For(ctx, listenPoll) != nil {
			return at, err
		}
	}
}

// another reports whether another daemon works. If that cannot be determined, the daemon reports the error when it
// starts.
func another(works func() (bool, error)) bool {
	if works == nil {
		return false
	}
	is, err := works()
	return err == nil && is
}
