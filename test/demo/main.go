// Command demo shows flexlvm on a cluster of its own: the commands that a user would type, and their actual output.
// It fails if the output does not show what the demo claims.
//
// KEEP=1 in the environment keeps the cluster running, without the dataset's S3 server, which ends once the dataset
// is loaded.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/flexlvm/flexlvm/test/cluster"
	"github.com/flexlvm/flexlvm/test/vm"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv("KEEP") == "1"); err != nil {
		if ctx.Err() != nil { // the interrupt caused any failure
			err = errors.New("interrupted")
		}
		fmt.Fprintln(os.Stderr, "\ndemo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, keep bool) (err error) {
	began := time.Now()
	root, err := vm.SourceDir()
	if err != nil {
		return err
	}
	if err := os.Chdir(root); err != nil { // the commands' file names are relative to it
		return fmt.Errorf("go to the repository: %w", err)
	}
	s := &stage{out: os.Stdout, color: isTerminal(os.Stdout), volumes: map[string]string{}}
	s.title("A Kubernetes cluster of one node, which has an empty disk")
	c, err := start(ctx, s, keep)
	if err != nil {
		return err
	}
	s.cluster = c
	defer func() {
		if !keep {
			err = errors.Join(err, stopCluster(ctx, c))
		}
	}()
	if err := play(ctx, s); err != nil {
		return err
	}
	if keep {
		s.say("\nThe S3 server has gone: the dataset can be used, but not loaded again.")
		s.title("The cluster stays up: make kubectl ARGS='get pods -A', make node-shell, make down")
	} else {
		s.title("That was all. The cluster is taken away, and nothing of it stays")
	}
	s.say("%.0f seconds", time.Since(began).Seconds())
	return nil
}

func start(ctx context.Context, s *stage, keep bool) (*cluster.Cluster, error) {
	name := "demo"
	if keep {
		name = "dev" // the default cluster of `make kubectl` and the other targets
	}
	return cluster.StartShipped(ctx, cluster.Config{
		Name: name, Detach: keep, Log: s.out,
		FindBackend: vm.FindBackendAtHand, // a first run must not wait for a kernel build
	})
}

// stopCluster also works after an interrupt.
func stopCluster(ctx context.Context, c *cluster.Cluster) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return c.Stop(ctx)
}
