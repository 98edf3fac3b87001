package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/flexlvm/flexlvm/internal/version"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the release",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), versionLine())
			return err
		},
	}
}

// versionLine has the release as its second word, which the doctor of another
// release reads.
func versionLine() string {
	return fmt.Sprintf("flexlvm %s (%s, %s/%s)\n", version.String, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
