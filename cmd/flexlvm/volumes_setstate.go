package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/flexlvm/flexlvm/internal/inventory"
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
		Short: "Say that nobody wants a volume any more",
		Long: `Say that nobody wants a volume any more: one that was retained, or one without a
PersistentVolume (an orphan). It becomes unreferenced, and the node daemon takes its
room back when it is needed, or at once where its class said so. Until then
` + "`flexlvm volumes undelete NAME`" + ` brings it back. Nothing is removed by this command.

No API server is asked, so ask it first: while ` + "`kubectl get pv NAME`" + ` finds a
PersistentVolume, the volume has an owner. Delete the claim then, and the volume is
released by itself. No pod can mount a volume that was forgotten; one that is in use
is refused.`,
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
		Short: "Keep a volume until a person decides",
		Long: `Keep a volume whose claim was deleted, until a person decides: however full the
disk runs, a retained volume is not removed. ` + "`flexlvm volumes undelete NAME`" + ` brings
it back with a claim, ` + "`flexlvm volumes forget NAME`" + ` gives it up.

No pod can mount a volume that is retained; one that is in use is refused.`,
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
		_, err := fmt.Fprintf(out, "%s is %s already\n", where(before), o.to)
		return err
	}
	wanted := before.State == volume.Ready || before.State == volume.Creating
	if use := use(before); wanted && use != "no" {
		return fmt.Errorf("volume %s is %s: a pod uses it, so somebody wants it; delete the pod and its claim first (`flexlvm volumes show %s`)", where(before), use, name)
	}
	after, err := e.SetState(ctx, before.Group, before.Name, o.to)
	if err != nil {
		return asRoot(err)
	}
	_, err = fmt.Fprintf(out, "%s is %s now (it was %s): %s\n", where(after), o.to, before.State, consequence(o.to, after))
	return err
}

func consequence(to volume.State, v inventory.Volume) string {
	switch {
	case to == volume.Retained:
		return "it stays until somebody undeletes or forgets it"
	case v.Reclaim == volume.ReclaimImmediate:
		return "its class said immediate, so the node daemon removes it the next time it looks"
	}
	return fmt.Sprintf("its room is taken back when it is needed; until then `flexlvm volumes undelete %s` brings it back", v.Name)
}

// checkMutable returns an error for a volume that cannot get another state. The engine decides about volumes in state
// creating, because their tags may lag behind their first mount.
func checkMutable(v inventory.Volume) error {
	switch v.State {
	case volume.Ready, volume.Unreferenced, volume.Retained, volume.Creating:
		return nil
	case volume.Doomed:
		return fmt.Errorf("volume %s is doomed: its removal has begun, its content may be overwritten already, and there is no way back. Restore its data from a backup into a new claim", where(v))
	}
	return errors.New("the tags of volume " + where(v) + " make no sense (" + v.Problem + "); " +
		volume.Remedy(v.Unknown, "put them right with lvchange --addtag and --deltag, then try again"))
}
