package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/undelete"
	"github.com/flexlvm/flexlvm/internal/volume"
)

type volumesUndeleteOptions struct {
	volumesOptions
	node         string
	hostname     string
	claim        string
	storageClass string
	ratio        string       // as the class says it
	parsedRatio  volume.Ratio // by check
	policy       reclaimPolicy
	door         string
	parsedDoor   pv.Door // by check
	secret       string
	parsedSecret pv.SecretRef // by check
	dryRun       bool
}

func newVolumesUndelete(g *global) *cobra.Command {
	o := volumesUndeleteOptions{volumesOptions: volumesOptions{global: g}, policy: policyRetain}
	cmd := &cobra.Command{
		Use:   "undelete NAME",
		Short: "Bring a volume back whose claim was deleted",
		Long: `Bring a volume back whose claim was deleted: it becomes ready again, and the
manifests of a PersistentVolume and a claim are printed, made from its LVM tags, for
kubectl. NAME is that of the PersistentVolume it had. Only they are on stdout.

It works on volumes in state unreferenced, as long as their room was not needed, and
retained. ` + "`flexlvm volumes list`" + ` shows both.

What the tags do not hold is for you to say: the claim's name, and its class, without
which it cannot grow; and how many times over the class promises its thin pool, without
which the volume is charged in full. A limit on inodes is not restored. The reclaim policy is Retain
unless you say otherwise, so that deleting the new claim by mistake does less harm.

No API server is asked, so ask it first: ` + "`kubectl get pv NAME`" + ` must find nothing. If
it finds a PersistentVolume that is Released and has the policy Retain, the volume is
still ready, and there is nothing to undelete: make the claim again under its old
name, with spec.volumeName NAME, and take uid and resourceVersion out of the
PersistentVolume's spec.claimRef. Or delete the PersistentVolume, wait until its
volume is retained, and use this command.

For a volume that is ready and has no PersistentVolume (an orphan, or an earlier
undelete whose manifests were lost), --dry-run prints the manifests.`,
		Example: `  flexlvm volumes undelete pvc-6e0bf2d2-3f6d-4b0e-9a55-0b9a8a3f7c11 --claim data --storage-class flexlvm | kubectl apply -f -
  flexlvm volumes undelete pvc-6e0bf2d2-3f6d-4b0e-9a55-0b9a8a3f7c11 --dry-run`,
		Args: oneVolume,
		RunE: o.run,
	}
	f := cmd.Flags()
	o.addGroup(cmd)
	f.StringVar(&o.node, "node", "", "name of this node in the cluster (default its hostname)")
	f.StringVar(&o.hostname, "hostname", "", "the node's label kubernetes.io/hostname (default --node)")
	f.StringVar(&o.claim, "claim", "", "name of the claim (default NAME)")
	f.StringVar(&o.storageClass, "storage-class", "", "class of the claim (default none)")
	f.StringVar(&o.ratio, "overprovision-ratio", "", "overprovisionRatio of the class, of a volume in a thin pool (default 1)")
	f.Var(&o.policy, "reclaim-policy", "what becomes of the volume when the new claim is deleted")
	f.StringVar(&o.door, "door", string(pv.Flex), "the driver that the PersistentVolume names: flex, or csi where the CSI driver runs on this node")
	f.StringVar(&o.secret, "secret", "", "NAMESPACE/NAME of the Secret with the key, of an encrypted volume")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the manifests, and change nothing")
	_ = cmd.RegisterFlagCompletionFunc("reclaim-policy", cobra.FixedCompletions([]string{string(policyRetain), string(policyDelete)}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (o *volumesUndeleteOptions) run(cmd *cobra.Command, args []string) error {
	if o.node == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("read the hostname: %w; name the node with --node", err)
		}
		o.node = strings.ToLower(host) // as kubelet does
	}
	if err := o.check(); err != nil {
		return err
	}
	return o.onNode(cmd, func(ctx context.Context, e engine) error {
		return o.undelete(ctx, e, args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
	})
}

// check looks at the flags before anything is looked up.
func (o *volumesUndeleteOptions) check() error {
	if o.hostname == "" {
		o.hostname = o.node
	}
	if _, err := pv.ParseObjectName("--node", o.node); err != nil {
		return err
	}
	if _, err := pv.ParseLabelValue("--hostname", o.hostname); err != nil {
		return err
	}
	if o.ratio != "" {
		var err error
		if o.parsedRatio, err = volume.ParseRatio("--overprovision-ratio", o.ratio); err != nil {
			return err
		}
	}
	if o.door != "" {
		var err error
		if o.parsedDoor, err = pv.ParseDoor("--door", o.door); err != nil {
			return err
		}
	}
	if o.secret != "" {
		var err error
		if o.parsedSecret, err = pv.ParseSecretRef("--secret", o.secret); err != nil {
			return err
		}
	}
	for flag, name := range map[string]string{"--claim": o.claim, "--storage-class": o.storageClass} {
		if name == "" {
			continue
		}
		if _, err := pv.ParseObjectName(flag, name); err != nil {
			return err
		}
	}
	return nil
}

// undelete says nothing on out before the volume is ready: what kubectl reads
// there may be applied. Killed in between, the volume is ready without a
// PersistentVolume, which nobody removes, and --dry-run prints the manifests.
func (o *volumesUndeleteOptions) undelete(ctx context.Context, e engine, name string, out, notes io.Writer) error {
	v, err := o.find(ctx, e, name)
	if err != nil {
		return err
	}
	if err := o.mayReturn(v); err != nil {
		return err
	}
	manifests, err := o.manifests(v)
	if err != nil {
		return err
	}
	if !o.dryRun {
		if _, err := e.SetState(ctx, v.Group, v.Name, volume.Ready); err != nil {
			return asRoot(err)
		}
	}
	if _, err := io.WriteString(out, manifests); err != nil {
		return fmt.Errorf("print the manifests: %w; the volume is ready, so print them again with --dry-run", err)
	}
	if o.dryRun {
		return nil
	}
	_, _ = fmt.Fprintf(notes, "flexlvm: %s is ready again (it was %s). Should its manifests get lost, print them again with --dry-run.\n", where(v), v.State)
	if o.claim == "" {
		_, _ = fmt.Fprintf(notes, "flexlvm: its tags do not hold the claim's name, so the claim is called %s/%s; --claim gives another.\n", v.Namespace, v.Name)
	}
	return nil
}

// mayReturn tells what to do about a volume that this command is not for.
func (o *volumesUndeleteOptions) mayReturn(v inventory.Volume) error {
	if err := alive(v); err != nil {
		return err
	}
	if err := undelete.MayReturn(v); err != nil {
		return err
	}
	if v.State == volume.Ready && !o.dryRun {
		return fmt.Errorf("volume %s is ready, so nothing was deleted here. Ask `kubectl get pv %s`: if it finds one, use that (`flexlvm volumes undelete -h`); if there is none, print the manifests with --dry-run", where(v), v.Name)
	}
	return nil
}

func (o *volumesUndeleteOptions) manifests(v inventory.Volume) (string, error) {
	if o.ratio != "" && v.Layout != volume.Thin {
		return "", &volume.FieldError{Field: "--overprovision-ratio", Value: o.ratio, Reason: fmt.Sprintf("is for volumes in thin pools, and volume %s is in none; leave it out", where(v))}
	}
	m, err := undelete.Manifest(v, undelete.Wish{
		Node: o.node, Hostname: o.hostname, Claim: o.claim, Class: o.storageClass, Policy: string(o.policy), Door: o.parsedDoor, Ratio: o.parsedRatio, Secret: o.parsedSecret,
	})
	if err != nil {
		return "", err
	}
	return m.YAML(), nil
}

// A reclaimPolicy is a persistentVolumeReclaimPolicy.
type reclaimPolicy string

const (
	policyRetain reclaimPolicy = "Retain"
	policyDelete reclaimPolicy = "Delete"
)

// String implements pflag.Value.
func (p *reclaimPolicy) String() string { return string(*p) }

// Set implements pflag.Value.
func (p *reclaimPolicy) Set(s string) error {
	switch v := reclaimPolicy(s); v {
	case policyRetain, policyDelete:
		*p = v
		return nil
	}
	return fmt.Errorf("it is %s or %s", policyRetain, policyDelete)
}

// Type implements pflag.Value; the help text shows it.
func (p *reclaimPolicy) Type() string { return "Retain|Delete" }
