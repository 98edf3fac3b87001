package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

type volumesDisownOptions struct {
	volumesOptions
}

func newVolumesDisown(g *global) *cobra.Command {
	o := volumesDisownOptions{volumesOptions{global: g}}
	cmd := &cobra.Command{
		Use:   "disown NAME",
		Short: "Remove flexlvm's tags from a retained volume, and keep its logical volume and data",
		Long: `Remove flexlvm's tags from a volume: its logical volume and its data stay, and flexlvm
ignores the logical volume from then on. This works for every volume of a claim, adopted
or not.

The volume must be retained, so that nothing in the cluster uses it any more. First run

  kubectl patch pv NAME -p '{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}'
  kubectl delete pvc CLAIM -n NAMESPACE
  kubectl delete pv NAME

and wait until ` + "`flexlvm volumes show NAME`" + ` shows the state retained. A volume in use is refused.`,
		Example: `  flexlvm volumes disown wiki`,
		Args:    oneVolume,
		RunE:    o.run,
	}
	o.addGroup(cmd)
	return cmd
}

func (o *volumesDisownOptions) run(cmd *cobra.Command, args []string) error {
	return o.change(cmd, func(ctx context.Context, e engine) error {
		return o.disown(ctx, e, args[0], cmd.OutOrStdout())
	})
}

func (o *volumesDisownOptions) disown(ctx context.Context, e engine, name string, out io.Writer) error {
	v, err := o.find(ctx, e, name)
	if err != nil {
		return err
	}
	if err := checkMutable(v); err != nil {
		return err
	}
	if err := e.Disown(ctx, v.Group, v.Name); err != nil {
		return adviseRoot(err)
	}
	_, err = fmt.Fprintf(out, "%s is not a flexlvm volume any more; its logical volume and data stay\n", v.FullName())
	return err
}
