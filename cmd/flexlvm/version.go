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
		RunE:  func(cmd *cobra.Command, _ []string) error { return printVersion(cmd) },
	}
}

// printVersion prints the release as the second word, where the doctor of another release expects it.
func printVersion(cmd *cobra.Command) error {
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "flexlvm %s (%s, %s/%s)\n", version.String, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}
