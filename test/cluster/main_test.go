//go:build cluster

package cluster_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/cluster"
	"github.com/flexlvm/flexlvm/test/schedule"
)

var (
	// shared is the cluster of two nodes that all tests use.
	shared *cluster.Cluster
	// slots limits the tests that run at the same time.
	slots *schedule.Slots
)

func TestMain(m *testing.M) {
	var err error
	slots, err = schedule.FromFlags(6) // parallel tests mostly wait for Kubernetes
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	c, err := startShared()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	shared = c
	code := m.Run()
	if snapshotController.stop != nil {
		snapshotController.stop()
	}
	if code != 0 {
		fmt.Fprintf(os.Stderr, "log of the snapshot controller:\n%s\n", &snapshotController.log)
		for _, name := range []string{"kube-controller-manager", "node1", "node2"} {
			fmt.Fprint(os.Stderr, c.Log(name, 15))
		}
		kept, err := c.KeepLogs()
		fmt.Fprintln(os.Stderr, "all logs are kept in", kept, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := c.Stop(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// inFull reports whether this is a campaign, which may take long.
func inFull() bool { return os.Getenv("FLEXLVM_CAMPAIGN") != "" }

// unhurried returns the pause between the writes of a background writer in a pod. It is long, so that a
// node with one processor has time for parallel tests, and short in a campaign, where a snapshot is
// then more likely to hit a write.
func unhurried(pause, inCampaign string) string {
	if inFull() {
		return inCampaign
	}
	return pause
}

// startShared starts the cluster, with flexlvm's image on its nodes. An interrupt during the start also
// ends running builds. A later one ends this process, and the cluster with it.
func startShared() (*cluster.Cluster, error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return cluster.StartShipped(ctx, cluster.Config{Nodes: 2, DiskSize: 54 << 30, Log: os.Stderr})
}

// deadline returns a context for one test.
func deadline(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// kubectl runs kubectl on the shared cluster, which must succeed.
func kubectl(ctx context.Context, t *testing.T, args ...string) string {
	t.Helper()
	began := time.Now()
	out, err := shared.Kubectl(ctx, args...)
	t.Logf("%s %5.1fs kubectl %s", began.Format(time.TimeOnly), time.Since(began).Seconds(), strings.Join(args, " "))
	require.NoError(t, err, out)
	return out
}

// onNode runs a line of shell on a node, which must succeed.
func onNode(ctx context.Context, t *testing.T, node, line string) string {
	t.Helper()
	out, err := shared.Node(ctx, node, "sh", "-c", line)
	require.NoError(t, err, out)
	return out
}
