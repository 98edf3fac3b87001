package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

type directoriesOptions struct {
	global            *global
	group, pool, size string
}

func newDirectories(g *global) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "directories",
		Short: "Create, enlarge and remove directory pools, which hold small volumes",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newDirectoriesCreate(g), newDirectoriesRemove(g))
	return cmd
}

func newDirectoriesCreate(g *global) *cobra.Command {
	o := directoriesOptions{global: g}
	cmd := &cobra.Command{
		Use:   "create --size SIZE",
		Short: "Create or enlarge a directory pool",
		Long: `Create a directory pool for classes with layout directory: a logical volume with an
XFS file system, in which volumes may take SIZE in total. The logical volume is
larger than that by what XFS needs for itself.

Run it again with a larger size to enlarge the pool, which may be in use. If it was
interrupted, run it again.`,
		Example: `  flexlvm directories create --size 20GiB
  flexlvm directories create --group fast --pool small --size 100GiB`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			size, err := parseSize("--size", o.size)
			if err != nil {
				return err
			}
			return o.run(cmd, func(e *node.Engine, g volume.Group, n volume.Name) error {
				ctx, cancel := withTimeout(cmd)
				defer cancel()
				holds, err := e.MakeDirectoryPool(ctx, g, n, size)
				if err == nil {
					_, err = fmt.Fprintf(cmd.OutOrStdout(), "directory pool %s has room for volumes of %s in total\n", volume.DirectoryPoolOf(g, n), holds)
				}
				return err
			})
		},
	}
	o.flags(cmd)
	cmd.Flags().StringVar(&o.size, "size", "", "total size of the volumes in the pool, at least 64MiB")
	return cmd
}

func newDirectoriesRemove(g *global) *cobra.Command {
	o := directoriesOptions{global: g}
	cmd := &cobra.Command{
		Use:   "remove",
		Short: "Remove a directory pool without volumes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd, func(e *node.Engine, g volume.Group, n volume.Name) error {
				ctx, cancel := withTimeout(cmd)
				defer cancel()
				if err := e.RemoveDirectoryPool(ctx, g, n); err != nil {
					return err
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "directory pool %s was removed\n", volume.DirectoryPoolOf(g, n))
				return err
			})
		},
	}
	o.flags(cmd)
	return cmd
}

func (o *directoriesOptions) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.group, "group", string(volume.DefaultGroup), "volume group of the pool")
	cmd.Flags().StringVar(&o.pool, "pool", "directories", "name of the pool, and of its logical volume")
}

func (o *directoriesOptions) run(cmd *cobra.Command, do func(*node.Engine, volume.Group, volume.Name) error) error {
	g, err := volume.ParseGroup("--group", o.group)
	if err != nil {
		return err
	}
	n, err := volume.ParseDirectoryPool("--pool", o.pool)
	if err != nil {
		return err
	}
	e, err := node.OnHost(o.global.logger(cmd.ErrOrStderr()))
	if err != nil {
		return err
	}
	if err := do(e, g, n); err != nil {
		return adviseRoot(err)
	}
	_ = node.WakeDaemon(node.DefaultStateDir) // best effort: otherwise it is reported within a minute
	return nil
}
