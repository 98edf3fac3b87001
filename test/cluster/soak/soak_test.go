//go:build cluster

package soak_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// settings of a run come from the environment: SOAK_CLAIMS, SOAK_NODES, SOAK_WORKERS and SOAK_SEED. A node is enough
// for a few claims, so that the test can run while another test has a node.
type settings struct {
	claims  int
	nodes   int
	workers int
	seed    uint64
}

func fromEnvironment(t *testing.T) settings {
	t.Helper()
	s := settings{claims: 10, nodes: 1, workers: 4, seed: uint64(time.Now().UnixNano())}
	for name, number := range map[string]*int{"SOAK_CLAIMS": &s.claims, "SOAK_NODES": &s.nodes, "SOAK_WORKERS": &s.workers} {
		if text := os.Getenv(name); text != "" {
			n, err := strconv.Atoi(text)
			require.NoError(t, err, name)
			require.Positive(t, n, name)
			*number = n
		}
	}
	if text := os.Getenv("SOAK_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "SOAK_SEED")
		s.seed = n
	}
	return s
}

// diskMiB returns the size of a node's disk: some of the claims live at the same time, and most deleted
// volumes have to be evicted before the end.
func (s settings) diskMiB() int64 { return 1400 + 16*int64(s.claims) }

// TestSoak creates claims, mounts them, writes to them, grows them and deletes them in random order,
// while there is never space for all deleted volumes, and while daemons and kubelets are killed. In the
// end every claim that was not deleted has its data, LVM has only the volumes that the API explains and
// released ones, at least one volume was evicted to make room, and none in use.
func TestSoak(t *testing.T) {
	s := fromEnvironment(t)
	fmt.Printf("soak: %d claims, %d nodes, %d workers, SOAK_SEED=%d\n", s.claims, s.nodes, s.workers, s.seed)
	b := start(t, s)
	h := newHistory(s, b.rooms(t))
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute+time.Duration(s.claims)*40*time.Second)
	defer cancel()
	b.follow(ctx, t, h)

	began := time.Now()
	stop := b.harass(ctx, h, s)
	var workers sync.WaitGroup
	for range s.workers {
		workers.Go(func() { b.work(ctx, h) })
	}
	done := make(chan struct{})
	go b.progress(h, began, done)
	workers.Wait()
	stop()
	close(done)
	require.NoError(t, ctx.Err(), "it has not come to an end: %s", h.line())
	worked := time.Since(began)

	b.quiet(ctx, t)
	b.evictOne(ctx, t, h)
	live := b.revisit(ctx, h)
	b.settle(ctx, t, h)
	b.compare(ctx, t, h)
	h.report(os.Stdout, s, worked, live)
	for _, wrong := range h.wrongs() {
		t.Error(wrong)
	}
}
