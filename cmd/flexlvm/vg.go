package main

import "github.com/spf13/cobra"

func newVG(g *global) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "vg",
		Short: "Create the volume group for the volumes",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newVGCreate(g))
	return cmd
}
