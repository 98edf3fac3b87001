package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/undelete"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// volumesSetStateOptions are the options of forget and retain, which differ only in the state that they set.
type volumesSetStateOptions struct {
	volumesOptions
	to volume.State
}

func newVolumesForget(g *global) *cobra.Command {
	o := volumesSetStateOptions{volumesOptions: volumesOptions{global: g}, to: volume.Unreferenced}
	cmd := &cobra.Command{
		Use:   "forget NAME",
		Short: "Allow the eviction of a volume that nobody needs",
		Long: `Allow the eviction of a volume that nobody needs any more: a retained volume, or one
without a PersistentVolume (an orphan). It becomes unreferenced, and the node daemon
evicts it when its room is needed, or immediately if its class says so. Until then
` + "`flexlvm volumes undelete NAME`" + ` restores it. This command itself removes nothing.

The API server is not contacted, so check first: if ` + "`kubectl get pv NAME`" + ` finds a
PersistentVolume, the volume is still needed. Delete its claim then, which releases the
volume. No pod can mount a volume that was forgotten. A volume in use is refused.`,
		Example: `  flexlvm volumes forget pvc-6e0bf2d2-3f6d-4b0e-9a55-0b9a8a3f7c11`,
		Args:    oneVolume,
		RunE:    o.run,
	}
	o.addGroup(cmd)
	return cmd
}

func newVolumesRetain(g *global) *cobra.Command {
	o := volumesSetStateOptions{volumesOptions: volumesOptions{global: g}, to: volume.Retained}
	cmd := &cobra.Command{
		Use:   "retain NAME",
		Short: "Protect a volume from eviction",
		Long: `Protect the volume of a deleted claim from eviction, however full the disk gets, until
` + "`flexlvm volumes undelete NAME`" + ` restores it with a claim, or
` + "`flexlvm volumes forget NAME`" + ` allows its eviction.

No pod can mount a retained volume. A volume in use is refused.`,
		Example: `  flexlvm volumes retain pvc-6e0bf2d2-3f6d-4b0e-9a55-0b9a8a3f7c11`,
		Args:    oneVolume,
		RunE:    o.run,
	}
	o.addGroup(cmd)
	return cmd
}

func (o *volumesSetStateOptions) run(cmd *cobra.Command, args []string) error {
	return o.change(cmd, func(ctx context.Context, e engine) error {
		return o.setState(ctx, e, args[0], cmd.OutOrStdout())
	})
}

func (o *volumesSetStateOptions) setState(ctx context.Context, e engine, name string, out io.Writer) error {
	before, err := o.find(ctx, e, name)
	if err != nil {
		return err
	}
	if err := checkMutable(before); err != nil {
		return err
	}
	if before.State == o.to {
		_, err := fmt.Fprintf(out, "%s is already %s\n", before.FullName(), o.to)
		return err
	}
	wanted := before.State == volume.Ready || before.State == volume.Creating
	if use := use(before); wanted && use != "no" {
		return fmt.Errorf("volume %s is %s, so a pod uses it; delete the pod and its claim first (`flexlvm volumes show %s`)", before.FullName(), use, name)
	}
	after, err := e.SetState(ctx, before.Group, before.Name, o.to)
	if err != nil {
		return adviseRoot(err)
	}
	_, err = fmt.Fprintf(out, "%s is %s now (it was %s): %s\n", after.FullName(), o.to, before.State, undelete.Consequence(o.to, after))
	return err
}

// checkMutable returns an error for a volume that cannot get another state. The engine decides about volumes in state
// creating, because their tags may lag behind their first mount.
func checkMutable(v inventory.Volume) error {
	switch v.State {
	case volume.Ready, volume.Unreferenced, volume.Retained, volume.Creating:
		return nil
	case volume.Doomed:
		return fmt.Errorf("volume %s is doomed: its removal has begun and cannot be undone, and its content may already be overwritten. Restore its data from a backup into a new claim", v.FullName())
	}
	switch {
	case v.DirectoryPool != "" && v.DirectoryPool == v.Name: // a faulty pool, which is listed like a volume
		return fmt.Errorf("%s is not a volume: %s", v.FullName(), v.Problem)
	case v.Layout == volume.Directory:
		return fmt.Errorf("the record of volume %s in directory pool %s is invalid (%s); %s", v.FullName(), v.Pool(), v.Problem,
			volume.Remedy(v.Unknown, "correct it, then retry"))
	}
	return fmt.Errorf("the tags of volume %s are invalid (%s); %s", v.FullName(), v.Problem,
		volume.Remedy(v.Unknown, "correct them with lvchange --addtag and --deltag, then retry"))
}
