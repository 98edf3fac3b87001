package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/undelete"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// adoptTimeout is the timeout of an adoption, which visits every file of a file system.
const adoptTimeout = 2 * time.Hour

type volumesAdoptOptions struct {
	volumesOptions
	objectsOptions
	namespace string
	cluster   string
	size      string
	dryRun    bool
}

func newVolumesAdopt(g *global) *cobra.Command {
	o := volumesAdoptOptions{volumesOptions: volumesOptions{global: g}, objectsOptions: objectsOptions{policy: policyRetain}}
	cmd := &cobra.Command{
		Use:   "adopt GROUP/NAME",
		Short: "Turn a logical volume with a file system that was created by hand into a flexlvm volume",
		Long: `Turn a logical volume that was created by hand, with XFS or ext4 on it, into a flexlvm
volume: it gets flexlvm's tags, its files count toward the volume's quota from then on,
and the manifests of a PersistentVolume and a claim are printed for kubectl. Only the
manifests are on stdout. Nothing is formatted, and the content of no file is changed.

Until the manifests are applied, the volume is retained: no pod gets it, and nothing
removes it. Once the PersistentVolume exists, the node daemon makes the volume ready. If
the manifests get lost, ` + "`flexlvm volumes undelete NAME`" + ` prints others.

A logical volume is refused if it is mounted or otherwise open, in a thin pool, a snapshot
or the origin of one, of a layout that flexlvm does not have, or incomplete; if it holds no
file system, another one, or several signatures; and if no PersistentVolume can have its
name. --dry-run runs all of these checks, prints the manifests, without the annotation
by which the node daemon makes the volume ready, and changes nothing.

If the command was interrupted, run it again. ` + "`flexlvm volumes disown`" + ` undoes it.`,
		Example: `  flexlvm volumes adopt data/wiki --namespace web --cluster "$(kubectl get namespace kube-system -o jsonpath={.metadata.uid})" --storage-class flexlvm | kubectl apply -f -`,
		Args:    cobra.ExactArgs(1),
		RunE:    o.run,
	}
	o.addFlags(cmd)
	f := cmd.Flags()
	f.StringVarP(&o.namespace, "namespace", "n", "", "namespace of the claim and the volume (required)")
	f.StringVar(&o.cluster, "cluster", "", "UID of the cluster's namespace kube-system; the node daemon of that cluster manages the volume (required)")
	f.StringVar(&o.size, "size", "", "size that the user may write (default: all that the logical volume holds)")
	f.BoolVar(&o.dryRun, "dry-run", false, "only print the manifests, and change nothing")
	return cmd
}

func (o *volumesAdoptOptions) run(cmd *cobra.Command, args []string) error {
	if err := o.defaultNode(); err != nil {
		return err
	}
	a, err := o.adoption(args[0])
	if err != nil {
		return err
	}
	err = o.onNodeFor(cmd, adoptTimeout, func(ctx context.Context, e engine) error {
		return o.adopt(ctx, e, a, cmd.OutOrStdout(), cmd.ErrOrStderr())
	})
	if err == nil && !o.dryRun {
		_ = node.WakeDaemon(node.DefaultStateDir) // best effort: otherwise it is reported within a minute
	}
	return err
}

// adoption returns the adoption that the arguments and flags request.
func (o *volumesAdoptOptions) adoption(path string) (a node.Adoption, err error) {
	if err := o.checkObjects(); err != nil {
		return a, err
	}
	group, name, ok := strings.Cut(strings.TrimPrefix(path, "/dev/"), "/")
	if !ok {
		return a, &volume.FieldError{Field: "GROUP/NAME", Value: path, Reason: "has no volume group; give GROUP/NAME, as `lvs` shows them"}
	}
	if a.Group, err = volume.ParseGroup("GROUP", group); err != nil {
		return a, err
	}
	if a.Name, err = volume.ParseName("NAME", name); err != nil {
		return a, err
	}
	if a.Namespace, err = volume.ParseNamespace("--namespace", o.namespace); err != nil {
		return a, err
	}
	if a.Cluster, err = volume.ParseCluster("--cluster", o.cluster); err != nil {
		return a, err
	}
	if o.size != "" {
		if a.Size, err = parseSize("--size", o.size); err == nil && a.Size == 0 {
			err = &volume.FieldError{Field: "--size", Value: o.size, Reason: "must be greater than 0; leave it out for all that the logical volume holds"}
		}
	}
	return a, err
}

// adopt builds the manifests before it adds the first tag: a volume that no PersistentVolume can be made for is
// not adopted. They are printed after the adoption.
func (o *volumesAdoptOptions) adopt(ctx context.Context, e adopter, a node.Adoption, out, notes io.Writer) error {
	v, err := e.PlanAdoption(ctx, a)
	if err != nil {
		return adviseRoot(err)
	}
	manifests, err := o.manifests(v)
	if err != nil {
		return err
	}
	if !o.dryRun {
		if v, err = e.Adopt(ctx, a); err != nil {
			return adviseRoot(err)
		}
		if manifests, err = o.manifests(v); err != nil { // the adopted size may be smaller
			return err
		}
	}
	if _, err := io.WriteString(out, manifests); err != nil {
		return fmt.Errorf("print the manifests: %w", err)
	}
	if o.dryRun {
		_, _ = fmt.Fprintf(notes, "flexlvm: this is a dry run, and %s is not adopted: do not apply these manifests\n", v.FullName())
	} else {
		_, _ = fmt.Fprintf(notes, "flexlvm: %s is adopted, and retained until its PersistentVolume exists. If the manifests get lost, `flexlvm volumes undelete %s` prints others; `flexlvm volumes disown %[2]s` undoes the adoption.\n", v.FullName(), v.Name)
	}
	return nil
}

func (o *volumesAdoptOptions) manifests(v inventory.Volume) (string, error) {
	m, err := undelete.Manifest(v, undelete.Request{
		Node: o.node, Hostname: o.hostname, Claim: o.claim, Class: o.storageClass, Policy: string(o.policy), Door: o.parsedDoor,
	})
	if err != nil {
		return "", err
	}
	// The manifests of a dry run lack the annotation for the node daemon: if they were applied with it, the
	// daemon would report that the data is permanently lost.
	m.Undelete = !o.dryRun
	return m.YAML(), nil
}
