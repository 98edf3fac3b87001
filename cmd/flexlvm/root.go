package main

import (
	"context"
	"io"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
)

// commandTimeout is the timeout of a command's work on the host, so that a host program that hangs does not hang the
// command.
const commandTimeout = 2 * time.Minute

// global holds the flags of all commands.
type global struct {
	verbose bool
}

func newRoot() *cobra.Command {
	var (
		g           global
		showVersion bool
	)
	cmd := &cobra.Command{
		Use:   "flexlvm",
		Short: "Local volumes of exactly the requested size",
		Long: `flexlvm gives the pods of a node local volumes of exactly the requested size: LVM
logical volumes with a file system (XFS or ext4) or as raw block devices, and
directories with a quota.

This program is the FlexVolume driver that kubelet executes (init, mount, unmount,
expandfs). The commands below are for administrators on a node.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if showVersion {
				return printVersion(cmd)
			}
			return cmd.Help()
		},
	}
	// Not cobra's own flag: its template would link text/template, which makes the linker keep all exported
	// methods and `init` a quarter slower.
	cmd.Flags().BoolVar(&showVersion, "version", false, "print the release")
	cmd.PersistentFlags().BoolVarP(&g.verbose, "verbose", "v", false, "print the host's programs as they are run")
	cmd.AddCommand(
		newVolumes(&g),
		newDoctor(&g),
		newVG(&g),
		newDirectories(&g),
		newInstall(),
		newUninstall(),
		newVersion(),
	)
	return cmd
}

// logger returns a logger that writes to the terminal if --verbose is set.
func (g *global) logger(stderr io.Writer) logrus.FieldLogger {
	log := logrus.New()
	log.SetOutput(io.Discard)
	if g.verbose {
		log.SetOutput(stderr)
		log.SetLevel(logrus.DebugLevel)
	}
	return log
}

func withTimeout(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	return context.WithTimeout(cmd.Context(), commandTimeout)
}
