package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func newVolumes(g *global) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "volumes",
		Short: "Look at the volumes of this node",
		Long: `Look at the volumes of this node, as their LVM tags tell of them. No API server
is asked.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newVolumesList(g), newVolumesShow(g))
	return cmd
}

// A lister returns the volumes of this node.
type lister interface {
	List(ctx context.Context) ([]node.Volume, error)
}

// listVolumes returns those of one group, or all for an empty group.
func listVolumes(ctx context.Context, l lister, group string) ([]node.Volume, error) {
	if group != "" {
		if _, err := volume.ParseGroup("--group", group); err != nil {
			return nil, err
		}
	}
	all, err := l.List(ctx)
	if err != nil {
		return nil, err
	}
	wanted := make([]node.Volume, 0, len(all))
	for _, v := range all {
		if group == "" || v.Group == volume.Group(group) {
			wanted = append(wanted, v)
		}
	}
	return wanted, nil
}
