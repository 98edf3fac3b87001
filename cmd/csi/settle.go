package main

import (
	"context"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// settleDeadline is far above the usual duration of settling and allows twenty first mounts to queue for LVM.
const settleDeadline = 3 * time.Minute

// A settler completes first mounts after the response was sent (node.Engine.Settle), so that kubelet waits for
// one LVM command less. If the process dies before that, the next call for the volume does it.
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
			s.log.WithError(err).WithField("volume", string(g)+"/"+string(n)).Warn("could not complete the first mount; the next call for the volume retries it")
		}
	})
}

// wait returns once all settling is done.
func (s *settler) wait() { s.work.Wait() }
