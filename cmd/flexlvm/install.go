package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/install"
	"github.com/flexlvm/flexlvm/internal/version"
)

// self is the file of the running program, even if its path was replaced or removed.
const self = "/proc/self/exe"

type installOptions struct {
	pluginDir string
	wait      bool
	verify    bool
	interval  time.Duration
}

func newInstall() *cobra.Command {
	var o installOptions
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Install this program as kubelet's driver",
		Long: `Install this program as the FlexVolume driver flexlvm.io/flexlvm, where kubelet
looks for it. The driver is installed atomically, running pods are not affected,
and a driver that is already the same is not changed.

With --wait it keeps running until SIGTERM, and restores the driver if it is removed
or damaged. A driver that another installation has put in its place is not changed.
The DaemonSet uses a smaller program for that, /installer of the image.

With --verify it changes nothing, and fails unless the installed driver is this
program and answers kubelet's first call. The DaemonSet's readiness probe uses it.`,
		Example: `  flexlvm install
  flexlvm install --plugin-dir /var/lib/kubelet/volumeplugins --wait`,
		Args: cobra.NoArgs,
		RunE: o.run,
	}
	o.addFlags(cmd)
	cmd.Flags().BoolVar(&o.verify, "verify", false, "change nothing; fail unless this program is installed and answers")
	cmd.MarkFlagsMutuallyExclusive("verify", "wait")
	return cmd
}

func (o *installOptions) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.pluginDir, "plugin-dir", install.DefaultPluginDir, "kubelet's --volume-plugin-dir")
	cmd.Flags().BoolVar(&o.wait, "wait", false, "keep running until SIGTERM, and check the driver at each interval")
	cmd.Flags().DurationVar(&o.interval, "interval", time.Minute, "with --wait, the interval between checks")
}

// place checks the flags.
func (o *installOptions) place() (install.Place, error) {
	if o.interval <= 0 {
		return install.Place{}, fmt.Errorf("--interval %s: must be more than 0", o.interval)
	}
	p, err := install.At(o.pluginDir)
	if err != nil {
		return install.Place{}, fmt.Errorf("--plugin-dir: %w", err)
	}
	return p, nil
}

func (o *installOptions) run(cmd *cobra.Command, _ []string) error {
	place, err := o.place()
	if err != nil {
		return err
	}
	ctx, cancel := withTimeout(cmd)
	defer cancel()
	if o.verify {
		return o.verifyDriver(ctx, cmd, place)
	}
	changed, err := place.Install(ctx, self)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(cmd.OutOrStdout(), place.Report(changed)); err != nil {
		return err
	}
	if !o.wait {
		return nil
	}
	log := logrus.New()
	log.SetOutput(cmd.ErrOrStderr())
	return place.Keep(cmd.Context(), self, o.interval, log)
}

func (o *installOptions) verifyDriver(ctx context.Context, cmd *cobra.Command, place install.Place) error {
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	if err := place.Verify(ctx, self, command.New(place.Dir(), quiet).Killable); err != nil {
		return err
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "flexlvm %s is installed and answers: %s\n", version.String, place.Driver())
	return err
}
