package main

import (
	"errors"
	"fmt"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/flexlvm/flexlvm/internal/install"
)

type uninstallOptions struct {
	installOptions
	force bool
	proc  string // the host's /proc
}

func newUninstall() *cobra.Command {
	o := uninstallOptions{proc: "/proc"}
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove the FlexVolume driver",
		Long: `Remove the FlexVolume driver from where kubelet looks for it. Volumes and their
data stay.

It fails while volumes are mounted, because kubelet could not unmount them any more:
drain the node first. It waits for calls of the driver that are still running. If
one of them has mounted a volume, it installs the driver again, as a copy of
itself, and fails. In a container it needs the host's PID namespace (hostPID: true)
to see the host's mounts.

With --wait it retries until no volume is mounted, and then keeps running until
SIGTERM. If a volume is mounted then, it installs the driver again and starts over.
Use that in a DaemonSet.`,
		Example: `  kubectl drain NODE --ignore-daemonsets --delete-emptydir-data
  flexlvm uninstall`,
		Args: cobra.NoArgs,
		RunE: o.run,
	}
	o.addFlags(cmd)
	cmd.Flags().BoolVar(&o.force, "force", false, "do not check whether volumes are mounted")
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
	removed := false
	install.Every(cmd.Context(), o.interval, func() {
		if removed {
			removed = o.force || o.stillUnused(cmd, place, log)
			return
		}
		if err := o.uninstall(cmd, place); err != nil {
			log.WithError(err).Warn("not uninstalled yet; retrying")
			return
		}
		removed = true
	})
	return nil
}

// stillUnused reports whether the driver has not been needed since it was removed, because a call during the
// removal may have been missed.
func (o *uninstallOptions) stillUnused(cmd *cobra.Command, place install.Place, log logrus.FieldLogger) bool {
	ctx, cancel := withTimeout(cmd)
	defer cancel()
	err := o.unused(place).Check(ctx)
	if err != nil {
		log.WithError(err).Warn("the driver was removed, but may still be needed; checking again")
	}
	return !errors.Is(err, install.ErrMounted)
}

func (o *uninstallOptions) uninstall(cmd *cobra.Command, place install.Place) error {
	ctx, cancel := withTimeout(cmd)
	defer cancel()
	remove := o.unused(place).Uninstall
	if o.force {
		remove = place.Uninstall
	}
	changed, err := remove(ctx)
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

func (o *uninstallOptions) unused(place install.Place) install.Unused {
	return install.Unused{Place: place, Proc: o.proc, Binary: self}
}
