package main

import (
	"context"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// settleDeadline is far above what it takes, and lets twenty first mounts queue for LVM.
const settleDeadline = 3 * time.Minute

// A settler does behind the reply what a first mount leaves to be done: kubelet waits for
// one command of LVM's less. If the process dies before, the next call makes up for it.
type settler struct {
	engine *node.Engine
	log    logrus.FieldLogger
	work   sync.WaitGroup
}

func (s *settler) settle(g volume.Group, n volume.Name) {
	s.work.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), settleDeadline)
		defer cancel()
		if err := s.engine.Settle(ctx, g, n); err != nil {
			s.log.WithError(err).WithField("volume", string(g)+"/"+string(n)).Warn("the volume's next call will settle it")
		}
	})
}

// wait returns once nothing is left to be done.
func (s *settler) wait() { s.work.Wait() }
