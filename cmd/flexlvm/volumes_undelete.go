package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/undelete"
	"github.com/flexlvm/flexlvm/internal/volume"
)

type volumesUndeleteOptions struct {
	volumesOptions
	objectsOptions
	ratio        string       // in the format of the class's parameter
	parsedRatio  volume.Ratio // set by check
	secret       string
	parsedSecret pv.SecretRef // set by check
	dryRun       bool
	noManifests  bool
}

func newVolumesUndelete(g *global) *cobra.Command {
	o := volumesUndeleteOptions{volumesOptions: volumesOptions{global: g}, objectsOptions: objectsOptions{policy: policyRetain}}
	cmd := &cobra.Command{
		Use:   "undelete NAME",
		Short: "Restore the volume of a deleted claim",
		Long: `Restore the volume of a deleted claim: the volume becomes ready again, and the manifests
of a PersistentVolume and a claim, built from the volume's LVM tags, are printed for
kubectl. NAME is the name of the former PersistentVolume. Only the manifests are on
stdout.

It works for volumes in state unreferenced, until they are evicted, and in state
retained. ` + "`flexlvm volumes list`" + ` shows both.

The tags do not contain everything. Set the claim's name and its StorageClass, without
which it cannot grow, and the overprovisioning ratio of a thin pool, without which the
volume is charged in full. A limit on inodes is not restored. The reclaim policy is
Retain unless you set another, so that deleting the new claim by mistake does less harm.

The API server is not contacted, so check first that ` + "`kubectl get pv NAME`" + ` finds
nothing. If it finds a PersistentVolume that is Released and has the reclaim policy
Retain, the volume is still ready and needs no undelete: create the claim again under its
old name, with spec.volumeName NAME, and remove uid and resourceVersion from the
PersistentVolume's spec.claimRef. Or delete the PersistentVolume, wait until its volume
is retained, and use this command.

For a volume that is ready and has no PersistentVolume (an orphan, or an earlier
undelete whose manifests were lost), --dry-run prints the manifests. For a volume that
was forgotten or retained although its PersistentVolume exists, --no-manifests only makes
the volume ready; then flags about the manifests are not needed.`,
		Example: `  flexlvm volumes undelete pvc-6e0bf2d2-3f6d-4b0e-9a55-0b9a8a3f7c11 --claim data --storage-class flexlvm | kubectl apply -f -
  flexlvm volumes undelete pvc-6e0bf2d2-3f6d-4b0e-9a55-0b9a8a3f7c11 --dry-run`,
		Args: oneVolume,
		RunE: o.run,
	}
	o.addGroup(cmd)
	o.addFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.ratio, "overprovision-ratio", "", "overprovisionRatio of the class, for a volume in a thin pool (default: 1)")
	f.StringVar(&o.secret, "secret", "", "NAMESPACE/NAME of the Secret with the key of an encrypted volume")
	f.BoolVar(&o.dryRun, "dry-run", false, "only print the manifests, and change nothing")
	f.BoolVar(&o.noManifests, "no-manifests", false, "only make the volume ready, because its PersistentVolume exists")
	cmd.MarkFlagsMutuallyExclusive("dry-run", "no-manifests")
	return cmd
}

func (o *volumesUndeleteOptions) run(cmd *cobra.Command, args []string) error {
	if err := o.defaultNode(); err != nil {
		return err
	}
	if err := o.check(); err != nil {
		return err
	}
	return o.onNode(cmd, func(ctx context.Context, e engine) error {
		return o.undelete(ctx, e, args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
	})
}

// check validates the flags before anything is looked up.
func (o *volumesUndeleteOptions) check() (err error) {
	if err := o.checkObjects(); err != nil {
		return err
	}
	if o.ratio != "" {
		if o.parsedRatio, err = volume.ParseRatio("--overprovision-ratio", o.ratio); err != nil {
			return err
		}
	}
	if o.secret != "" {
		o.parsedSecret, err = pv.ParseSecretRef("--secret", o.secret)
	}
	return err
}

// undelete prints nothing to out before the volume is ready, because kubectl may apply it. Killed in between,
// it leaves an orphan, a ready volume without a PersistentVolume, for which --dry-run prints the manifests.
func (o *volumesUndeleteOptions) undelete(ctx context.Context, e engine, name string, out, notes io.Writer) error {
	v, err := o.find(ctx, e, name)
	if err != nil {
		return err
	}
	if err := o.checkRestorable(v); err != nil {
		return err
	}
	if o.noManifests {
		return o.makeReady(ctx, e, v, notes)
	}
	manifests, err := o.manifests(v)
	if err != nil {
		return err
	}
	if !o.dryRun {
		if _, err := e.SetState(ctx, v.Group, v.Name, volume.Ready); err != nil {
			return adviseRoot(err)
		}
	}
	if _, err := io.WriteString(out, manifests); err != nil {
		return fmt.Errorf("print the manifests: %w; the volume is ready, so print them again with --dry-run", err)
	}
	if o.dryRun {
		return nil
	}
	_, _ = fmt.Fprintf(notes, "flexlvm: %s is ready again (it was %s). If the manifests get lost, print them again with --dry-run.\n", v.FullName(), v.State)
	if o.claim == "" {
		_, _ = fmt.Fprintf(notes, "flexlvm: the volume's tags do not contain the claim's name, so the claim is called %s/%s; set another with --claim.\n", v.Namespace, v.Name)
	}
	return nil
}

// makeReady makes the volume of an existing PersistentVolume ready.
func (o *volumesUndeleteOptions) makeReady(ctx context.Context, e engine, v inventory.Volume, notes io.Writer) error {
	if _, err := e.SetState(ctx, v.Group, v.Name, volume.Ready); err != nil {
		return adviseRoot(err)
	}
	_, err := fmt.Fprintf(notes, "flexlvm: %s is ready again (it was %s)\n", v.FullName(), v.State)
	return err
}

// checkRestorable returns an error if this command cannot restore a volume. The error explains what to do instead.
func (o *volumesUndeleteOptions) checkRestorable(v inventory.Volume) error {
	if err := checkMutable(v); err != nil {
		return err
	}
	check := undelete.CheckRestorable
	if o.noManifests { // a replica's PersistentVolume cannot be made from the tags, but may exist
		check = undelete.CheckComplete
	}
	if err := check(v); err != nil {
		return err
	}
	if v.State == volume.Ready && !o.dryRun {
		return fmt.Errorf("volume %s is ready, so there is nothing to restore. Check `kubectl get pv %s`: if the PersistentVolume exists, use it (`flexlvm volumes undelete -h`); if not, print the manifests with --dry-run", v.FullName(), v.Name)
	}
	return nil
}

func (o *volumesUndeleteOptions) manifests(v inventory.Volume) (string, error) {
	if o.ratio != "" && v.Layout != volume.Thin {
		return "", &volume.FieldError{Field: "--overprovision-ratio", Value: o.ratio, Reason: fmt.Sprintf("applies only to volumes in thin pools, and volume %s is in none; leave it out", v.FullName())}
	}
	m, err := undelete.Manifest(v, undelete.Request{
		Node: o.node, Hostname: o.hostname, Claim: o.claim, Class: o.storageClass, Policy: string(o.policy), Door: o.parsedDoor, Ratio: o.parsedRatio, Secret: o.parsedSecret,
	})
	if err != nil {
		return "", err
	}
	return m.YAML(), nil
}
