// Command ctl is the test cluster's command line.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/flexlvm/flexlvm/test/cluster"
)

const stopDeadline = time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := rootCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "ctl",
		Short:         "A disposable Kubernetes cluster of virtual machines",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.TraverseChildren = true // kubectl parses its own flags
	name := root.PersistentFlags().String("name", "dev", "which cluster")
	root.AddCommand(buildCommand(), upCommand(name), downCommand(name), statusCommand(name), kubectlCommand(name), nodeShellCommand(name), imageCommand(name), superviseCommand())
	return root
}

func upCommand(name *string) *cobra.Command {
	cfg := cluster.Config{Detach: true, Log: os.Stderr}
	cmd := &cobra.Command{
		Use:   "up",
		Short: "start a cluster that stays until `down`",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.Name = *name
			c, err := cluster.Start(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			fmt.Fprintf(os.Stderr, "logs are in %s\n", c.Dir())
			return nil
		},
	}
	cmd.Flags().IntVar(&cfg.Nodes, "nodes", 1, "how many nodes")
	cmd.Flags().IntVar(&cfg.MemoryMiB, "memory", 2048, "MiB of memory of each node")
	cmd.Flags().Int64Var(&cfg.DiskSize, "disk", 8<<30, "bytes of each node's empty disk, /dev/vdb")
	cmd.Flags().StringArrayVar(&cfg.Images, "image", nil, "image archive for the nodes; may be repeated")
	return cmd
}

func downCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "stop the cluster and remove all that is left of it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), stopDeadline)
			defer cancel()
			c, err := cluster.Attach(*name)
			if errors.Is(err, cluster.ErrNotRunning) {
				return cluster.RemoveStale(ctx)
			}
			if err != nil {
				return err
			}
			return c.Stop(ctx)
		},
	}
}

func buildCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "build",
		Short: "build Kubernetes, its tests of CSI drivers, flexlvm's images, and the sidecars that tests use, unless they are in the cache already",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := cluster.BuildKubernetes(cmd.Context(), cmd.ErrOrStderr()); err != nil {
				return err
			}
			if _, err := cluster.BuildConformance(cmd.Context(), cmd.ErrOrStderr()); err != nil {
				return err
			}
			return buildBeside(cmd.Context(), cmd.ErrOrStderr())
		},
	}
}

// buildBeside builds what tests install in a cluster, because most of it takes minutes for which their nodes would
// wait.
func buildBeside(ctx context.Context, log io.Writer) error {
	for _, name := range []string{"resizer", "snapshotter"} {
		if _, err := cluster.BuildSidecarImage(ctx, name, log); err != nil {
			return err
		}
	}
	if _, err := cluster.BuildSnapshotController(ctx, log); err != nil {
		return err
	}
	if _, err := cluster.BuildEtcdImage(ctx, log); err != nil {
		return err
	}
	return cluster.BuildReleases(ctx)
}

func statusCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "list the cluster's components and nodes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := cluster.Attach(*name)
			if err != nil {
				return err
			}
			all, err := c.Status(cmd.Context())
			if err != nil {
				return err
			}
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			for _, s := range all {
				state := "running"
				switch {
				case !s.Running:
					state = "stopped"
				case s.Node && !s.Ready:
					state = "running, not Ready"
				case s.Node:
					state = "Ready"
				}
				fmt.Fprintf(table, "%s\t%s\n", s.Name, state)
			}
			fmt.Fprintf(table, "logs\t%s\n", c.Dir())
			return table.Flush()
		},
	}
}

func kubectlCommand(name *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:                "kubectl ARG…",
		Short:              "run kubectl as the cluster's administrator",
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := cluster.Attach(*name)
			if err != nil {
				return err
			}
			return become(c.KubectlCommand(cmd.Context(), args...))
		},
	}
	return cmd
}

func nodeShellCommand(name *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "node-shell NODE [COMMAND…]",
		Short: "open a shell, or run a line of shell, on a node",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := cluster.Attach(*name)
			if err != nil {
				return err
			}
			ssh, err := c.NodeCommand(cmd.Context(), args[0], args[1:]...)
			if err != nil {
				return err
			}
			return become(ssh)
		},
	}
	cmd.Flags().SetInterspersed(false) // everything after the node belongs to the command
	return cmd
}

func superviseCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "supervise DIR",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return cluster.Supervise(args[0], os.Stdin, os.Stdout)
		},
	}
}

// become replaces this process, so that signals and the terminal reach the command directly.
func become(cmd *exec.Cmd) error {
	if cmd.Err != nil {
		return cmd.Err
	}
	return syscall.Exec(cmd.Path, cmd.Args, os.Environ())
}
