package main

import (
	"context"
	"errors"
	"testing"
	"time"

	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/require"
)

// A sweep closes leftovers at the start, and retries at each tick.
func TestSweep(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ticks, calls, ended := make(chan time.Time), 0, make(chan struct{})
	log, said := logtest.NewNullLogger()
	go func() {
		defer close(ended)
		sweep(ctx, ticks, func(context.Context) error {
			if calls++; calls == 1 {
				return errors.New("torn")
			}
			return nil
		}, log)
	}()
	ticks <- time.Now()
	ticks <- time.Now()
	cancel()
	<-ended
	require.Equal(t, 3, calls)
	require.Len(t, said.AllEntries(), 1)
}
