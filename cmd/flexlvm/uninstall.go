package main

import (
	"context"
	"fmt"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/flexlvm/flexlvm/internal/install"
)

type uninstallOptions struct {
	installOptions
	force bool
}

func newUninstall() *cobra.Command {
	var o uninstallOptions
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove kubelet's driver",
		Long: `Remove the FlexVolume driver from where kubelet looks for it. Volumes and their
data stay.

It refuses while volumes are mounted, because kubelet could not unmount them any
more: drain the node first. In a container it needs the host's PID namespace
(hostPID: true) to see the host's mounts.

With --wait it tries until nothing is mounted any more, and then stays until it is
told to end (SIGTERM). That is for a DaemonSet.`,
		Example: `  kubectl drain NODE --ignore-daemonsets --delete-emptydir-data
  flexlvm uninstall`,
		Args: cobra.NoArgs,
		RunE: o.run,
	}
	o.addFlags(cmd)
	cmd.Flags().BoolVar(&o.force, "force", false, "do not look whether volumes are mounted")
	return cmd
}

func (o *uninstallOptions) run(cmd *cobra.Command, _ []string) error {
	place, err := o.place()
	if err != nil {
		return err
	}
	if !o.wait {
		return o.uninstall(cmd, place)
	}
	log := logrus.New()
	log.SetOutput(cmd.ErrOrStderr())
	done := false
	install.Every(cmd.Context(), o.interval, func() {
		if done {
			return
		}
		if err := o.uninstall(cmd, place); err != nil {
			log.WithError(err).Warn("not uninstalled yet; it is tried again")
			return
		}
		done = true
	})
	return nil
}

func (o *uninstallOptions) uninstall(cmd *cobra.Command, place install.Place) error {
	if !o.force {
		if err := refuseMounted("/proc"); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), patience)
	defer cancel()
	changed, err := place.Uninstall(ctx)
	if err != nil {
		return err
	}
	what := "was not installed"
	if changed {
		what = "uninstalled"
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "flexlvm %s: %s\n", what, place.Driver())
	return err
}

func refuseMounted(proc string) error {
	file, err := install.HostMounts(proc)
	if err != nil {
		return fmt.Errorf("%w, or with --force", err)
	}
	mounted, err := install.Mounted(file)
	if err != nil {
		return err
	}
	if len(mounted) > 0 {
		return install.Refusal(mounted)
	}
	return nil
}
