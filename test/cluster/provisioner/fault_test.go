//go:build cluster

package provisioner_test

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/await"
)

// testLeaderKilled: the other provisioner takes over when the lease has expired.
func (b *bed) testLeaderKilled(t *testing.T) {
	s := b.namespace(t, "killed")
	b.withShortLease(t)
	first := b.run(t, 8081)
	b.ready(t, 8081)
	await.Until(t, longest, func() string {
		return await.Missing(b.metric(t, 8081, "flexlvm_provisioner_leader") == "1", "the first does not lead")
	})
	was := b.leader(t)
	b.run(t, 8082)
	b.ready(t, 8082)
	require.Equal(t, "0", b.metric(t, 8082, "flexlvm_provisioner_leader"), "two lead")
	s.many("before", 5)
	await.Until(t, longest, func() string { return s.unbound(t.Context()) })

	s.many("after", 10)
	first.kill()
	killed := time.Now()
	await.Until(t, longest, func() string { return s.unbound(t.Context()) })
	t.Logf("10 claims bound %.1f s after their leader was killed; its lease lasts %s", time.Since(killed).Seconds(), leaseDuration)
	s.oneEach(15)
	// All claims may have been served before the kill took effect; the lease shows the new leader.
	await.Until(t, longest, func() string {
		now := b.leader(t)
		return await.Missing(now != was && now != "", "leader is still %q", now)
	})
}

// testLeaderEnds: a leader that is told to end releases its lease, so that the other one does not wait
// for it. It would wait ten minutes.
func (b *bed) testLeaderEnds(t *testing.T) {
	s := b.namespace(t, "ends")
	first := b.run(t, 8083)
	b.ready(t, 8083)
	await.Until(t, longest, func() string {
		return await.Missing(b.metric(t, 8083, "flexlvm_provisioner_leader") == "1", "the first does not lead")
	})
	b.run(t, 8084)
	b.ready(t, 8084)
	s.many("c", 10)
	require.NoError(t, first.cmd.Process.Signal(syscall.SIGTERM))
	ended := time.Now()
	select {
	case <-first.done:
	case <-time.After(longest):
		t.Fatal("it does not end")
	}
	require.NoError(t, first.err, "exit code")
	await.Until(t, longest, func() string {
		return await.Missing(b.metric(t, 8084, "flexlvm_provisioner_leader") == "1", "the second does not lead")
	})
	t.Logf("the second leads %.1f s after the first was told to end", time.Since(ended).Seconds())
	await.Until(t, longest, func() string { return s.unbound(t.Context()) })
	s.oneEach(10)
}

// testKilledAgainAndAgain: wherever the provisioner is killed, each claim gets one volume.
func (b *bed) testKilledAgainAndAgain(t *testing.T) {
	s := b.namespace(t, "again")
	var mu sync.Mutex
	var current *process
	stop := b.keep(t, 8085, func(p *process) {
		mu.Lock()
		defer mu.Unlock()
		current = p
	})
	defer stop()
	kills := 0
	for i := range 8 {
		b.ready(t, 8085)
		leads(t, b, 8085)
		s.many(fmt.Sprintf("r%d", i), 8)
		time.Sleep(time.Duration(i) * 30 * time.Millisecond)
		mu.Lock()
		p := current
		mu.Unlock()
		p.kill()
		kills++
	}
	await.Until(t, longest, func() string { return s.unbound(t.Context()) })
	s.oneEach(64)
	t.Logf("64 claims, %d kills, 64 volumes", kills)
}

func leads(t *testing.T, b *bed, port int) {
	t.Helper()
	await.Until(t, longest, func() string {
		_, body, err := b.get(t.Context(), port, "/metrics")
		return await.Missing(err == nil && strings.Contains(body, "flexlvm_provisioner_leader 1\n"), "it does not lead: %v", err)
	})
}

// testServerAway: the API server goes down and comes back while claims wait.
func (b *bed) testServerAway(t *testing.T) {
	s := b.namespace(t, "away")
	b.withShortLease(t)
	var starts atomic.Int32
	stop := b.keep(t, 8086, func(*process) { starts.Add(1) })
	b.ready(t, 8086)
	leads(t, b, 8086)
	s.many("c", 30)
	require.NoError(t, b.cluster.Kill(t.Context(), "kube-apiserver"))
	await.Until(t, longest, func() string { // the provisioner has ended, because it could not renew its lease
		return await.Missing(starts.Load() > 1, "the provisioner works without its lease")
	})
	require.NoError(t, b.cluster.Run(t.Context(), "kube-apiserver"))
	back := time.Now()
	await.Until(t, longest, func() string { return s.unbound(t.Context()) })
	t.Logf("30 claims bound %.1f s after the API server was back; the provisioner was started %d times", time.Since(back).Seconds(), starts.Load())
	s.oneEach(30)
	stop()
}

// testNothingWasForbidden: all of the above worked with the shipped rights. An API server that has just
// started forbids everything until it has read the roles, so the provisioner that ran during such a
// start does not count.
func (b *bed) testNothingWasForbidden(t *testing.T) {
	logs, err := os.ReadDir(b.dir)
	require.NoError(t, err)
	read := 0
	for _, entry := range logs {
		if !strings.HasSuffix(entry.Name(), ".log") || strings.Contains(entry.Name(), "8086") {
			continue
		}
		content, err := os.ReadFile(b.dir + "/" + entry.Name())
		require.NoError(t, err)
		read++
		for line := range strings.Lines(string(content)) {
			require.NotContains(t, line, "forbidden")
			require.NotContains(t, line, "Unauthorized")
			require.NotContains(t, line, "panic")
		}
	}
	require.NotZero(t, read)
}
