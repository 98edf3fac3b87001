package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/flexlvm/flexlvm/test/cluster"
)

func imageCommand(name *string) *cobra.Command {
	var release string
	cmd := &cobra.Command{
		Use:   "load-image",
		Short: "build flexlvm's image from this source and bring it to all nodes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := cluster.Attach(*name)
			if err != nil {
				return err
			}
			if release == "" {
				if release, err = cluster.ShippedRelease(); err != nil {
					return err
				}
			}
			archive, err := cluster.BuildImage(cmd.Context(), release)
			if err != nil {
				return err
			}
			if err := c.LoadImage(cmd.Context(), archive); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "all nodes have localhost/flexlvm/flexlvm:%s\n", release)
			return err
		},
	}
	cmd.Flags().StringVar(&release, "release", "", "the image's tag (default what installer/ says)")
	return cmd
}
