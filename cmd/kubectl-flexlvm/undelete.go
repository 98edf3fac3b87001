package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/flexlvm/flexlvm/internal/overview"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/undelete"
)

// undeleteOptions are what is asked.
type undeleteOptions struct {
	wanted overview.Wanted
	as     string
	class  string
	policy string
	// policyGiven: one that a PersistentVolume has already must be this very one.
	policyGiven bool

	door   string
	secret string
	dryRun bool
	wait   time.Duration
}

func undeleteCommand(s *session) *cobra.Command {
	o := undeleteOptions{}
	cmd := &cobra.Command{
		Use:   "undelete CLAIM",
		Short: "Bring a volume back whose claim was deleted",
		Long: `undelete brings back the volume of a claim that was deleted, as long as its room was not
needed: it makes its PersistentVolume and its claim again, from what the node reports, and the
node makes the volume ready. Only who may create PersistentVolumes can do it. It says what
became of it. Called again, it makes what an earlier call could not.

The claim is in the namespace that the volume belongs to (-n), and has the name that it had,
unless --as-claim says another. Nodes list the volumes that were released last; where the name of
the claim is not known, or several had it, --volume says which is meant; a PersistentVolume of
the claim that is still there counts, too.

The reclaim policy is Retain unless you say otherwise, so that deleting the new claim by
mistake does less harm. If the volume was evicted meanwhile, the node says so, and no empty
volume takes its place.`,
		Example: `  kubectl flexlvm undelete data -n shop
  kubectl flexlvm undelete data -n shop --volume pvc-6e0bf2d2-3f6d-4b0e-9a55-0b9a8a3f7c11`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 || len(args) == 0 && o.wanted.Volume != "" {
				return nil
			}
			return fmt.Errorf("%q: name the claim that was deleted, or its volume with --volume", args)
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			return s.completeReleased(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				o.wanted.Claim = args[0]
			}
			return o.run(cmd, s)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.wanted.Volume, "volume", "", "the volume that is meant, by the name of the PersistentVolume it had")
	f.StringVar(&o.wanted.Node, "node", "", "the node that it is on, if several have one")
	f.StringVar(&o.as, "as-claim", "", "name of the new claim (default: the one it had)")
	f.StringVar(&o.class, "storage-class", "", "class of the claim (default: the one it had)")
	f.StringVar(&o.policy, "reclaim-policy", string(corev1.PersistentVolumeReclaimRetain), "what becomes of the volume when the new claim is deleted: Retain or Delete")
	f.StringVar(&o.door, "door", "", "the driver that mounts it: flex, or csi where the CSI driver runs on the node (default: the one it had)")
	f.StringVar(&o.secret, "secret", "", "NAMESPACE/NAME of the Secret with the key, of an encrypted volume")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the manifests, and change nothing")
	f.DurationVar(&o.wait, "wait", time.Minute, "how long to wait for the node; 0: not at all")
	_ = cmd.RegisterFlagCompletionFunc("reclaim-policy", cobra.FixedCompletions([]string{"Retain", "Delete"}, cobra.ShellCompDirectiveNoFileComp)) // as in outputFlag
	_ = cmd.RegisterFlagCompletionFunc("door", cobra.FixedCompletions([]string{"flex", "csi"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (o *undeleteOptions) run(cmd *cobra.Command, s *session) error {
	if p := corev1.PersistentVolumeReclaimPolicy(o.policy); p != corev1.PersistentVolumeReclaimRetain && p != corev1.PersistentVolumeReclaimDelete {
		return fmt.Errorf("--reclaim-policy %q: give Retain or Delete", o.policy)
	}
	if o.wait < 0 {
		return fmt.Errorf("--wait %s: give 0 or more, as in 1m", o.wait)
	}
	o.policyGiven = cmd.Flags().Changed("reclaim-policy")
	if err := o.checkNames(); err != nil { // before the cluster is asked, as all that is refused
		return err
	}
	if err := o.apply(&undelete.Wish{}); err != nil {
		return err
	}
	c, err := s.client()
	if err != nil {
		return err
	}
	if o.wanted.Namespace, err = s.namespace(); err != nil {
		return err
	}
	return o.undelete(cmd.Context(), c, plain{cmd.OutOrStdout()})
}

// checkNames refuses what the API server would refuse of the claim, for the PersistentVolume would be there by then.
func (o *undeleteOptions) checkNames() error {
	for _, given := range []struct{ field, name string }{{"claim", o.wanted.Claim}, {"--as-claim", o.as}, {"--storage-class", o.class}} {
		if given.name == "" {
			continue
		}
		if _, err := pv.ParseObjectName(given.field, given.name); err != nil {
			return err
		}
	}
	return nil
}

func (o *undeleteOptions) undelete(ctx context.Context, c client.Client, out io.Writer) error {
	there, err := lookFor(ctx, c, o.wanted)
	if err != nil {
		return err
	}
	found, err := there.meant(overview.Find)
	if err != nil {
		// An earlier call may have brought it back, and not have made the claim.
		switch again, unfinished := o.unfinished(ctx, c); {
		case !unfinished:
			return err
		case o.dryRun:
			return fmt.Errorf("%w\nPersistentVolume %s is there already, of an earlier call; without --dry-run its claim is made", err, again.Name)
		default:
			return o.finish(ctx, c, again, out)
		}
	}
	m, err := o.manifest(ctx, c, found)
	if err != nil {
		return err
	}
	object, claim := persistentvolume.FromManifest(m, modesOf(found))
	object.Annotations[pv.AnnotationUndelete] = found.Released.FilesystemUUID
	if o.dryRun {
		return printObjects(out, object, claim)
	}
	if err := free(ctx, c, claim); err != nil {
		return err
	}
	made, err := o.createVolume(ctx, c, object)
	if err != nil {
		return err
	}
	if err := createClaim(ctx, c, claim); err != nil {
		return err
	}
	return o.await(ctx, c, made, out)
}

// manifest is what is made: as it was, but for what the flags say.
func (o *undeleteOptions) manifest(ctx context.Context, c client.Client, found overview.Candidate) (pv.Manifest, error) {
	cluster := &corev1.Namespace{}
	if err := c.Get(ctx, client.ObjectKey{Name: "kube-system"}, cluster); err != nil {
		return pv.Manifest{}, fmt.Errorf("read the UID of the cluster: %w", err)
	}
	node := &corev1.Node{}
	if err := c.Get(ctx, client.ObjectKey{Name: found.Node}, node); err != nil {
		return pv.Manifest{}, fmt.Errorf("read Node %s: %w", found.Node, err)
	}
	v := found.Inventory(string(cluster.UID))
	if err := undelete.MayReturn(v); err != nil {
		return pv.Manifest{}, err
	}
	w, err := found.Wish()
	if err != nil {
		return pv.Manifest{}, err
	}
	w.Policy, w.Hostname = o.policy, node.Labels[corev1.LabelHostname]
	if w.Hostname == "" {
		w.Hostname = node.Name
	}
	if err := o.apply(&w); err != nil {
		return pv.Manifest{}, err
	}
	return undelete.Manifest(v, w)
}

// apply puts what the flags say into a wish.
func (o *undeleteOptions) apply(w *undelete.Wish) (err error) {
	for _, given := range []struct {
		what string
		into *string
	}{{o.wanted.Claim, &w.Claim}, {o.as, &w.Claim}, {o.class, &w.Class}} {
		if given.what != "" {
			*given.into = given.what
		}
	}
	if o.door != "" {
		if w.Door, err = pv.ParseDoor("--door", o.door); err != nil {
			return err
		}
	}
	if o.secret != "" {
		if w.Secret, err = pv.ParseSecretRef("--secret", o.secret); err != nil {
			return err
		}
	}
	return nil
}

func modesOf(found overview.Candidate) (out []corev1.PersistentVolumeAccessMode) {
	if found.Released.Origin == nil {
		return nil
	}
	for _, mode := range found.Released.Origin.AccessModes {
		out = append(out, corev1.PersistentVolumeAccessMode(mode))
	}
	return out
}

// free fails if the claim's name is taken by another claim: a StatefulSet makes a missing
// one anew.
func free(ctx context.Context, c client.Client, claim *corev1.PersistentVolumeClaim) error {
	there := &corev1.PersistentVolumeClaim{}
	err := c.Get(ctx, client.ObjectKeyFromObject(claim), there)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("look for claim %s/%s: %w", claim.Namespace, claim.Name, err)
	case there.Spec.VolumeName == claim.Spec.VolumeName:
		return nil
	}
	return fmt.Errorf("claim %s/%s is there already, with another volume (%q): a StatefulSet makes a missing claim anew. Keep the old volume (kubectl flexlvm retain), scale the StatefulSet down, delete that claim if nothing in it is wanted, and try again; or give another name with --as-claim",
		claim.Namespace, claim.Name, there.Spec.VolumeName)
}

// createVolume makes the PersistentVolume, or takes one that an earlier call has made for
// the same claim.
func (o *undeleteOptions) createVolume(ctx context.Context, c client.Client, object *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	err := c.Create(ctx, object)
	if err == nil {
		return object, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("make PersistentVolume %s: %w", object.Name, err)
	}
	there := &corev1.PersistentVolume{}
	if err := c.Get(ctx, client.ObjectKeyFromObject(object), there); err != nil {
		return nil, fmt.Errorf("read PersistentVolume %s: %w", object.Name, err)
	}
	if err := sameUndelete(there, object); err != nil {
		return nil, err
	}
	return there, o.agrees(there)
}

// sameUndelete fails unless a PersistentVolume was made to bring the same volume back for
// the same claim.
func sameUndelete(there, want *corev1.PersistentVolume) error {
	is, err := persistentvolume.Parse(there)
	if err != nil {
		return err
	}
	be, err := persistentvolume.Parse(want)
	switch {
	case err != nil:
		return err
	case is.Deleting:
		return fmt.Errorf("PersistentVolume %s is still being deleted; try again when it is gone", there.Name)
	case is.FS != be.FS || is.Volume != be.Volume || is.Group != be.Group:
		return fmt.Errorf("PersistentVolume %s is still there (%s): nothing was deleted for good. See docs/undelete.md: when the PersistentVolume is still there", there.Name, is.Phase)
	case !is.Usable():
		return fmt.Errorf("PersistentVolume %s is still there (%s); delete it, and try again when it is gone", there.Name, is.Phase)
	case is.ClaimNamespace != be.ClaimNamespace || is.ClaimName != be.ClaimName:
		return fmt.Errorf("volume %s was brought back already, for %s", there.Name, is.User())
	}
	return nil
}

// createClaim makes the claim, or takes one that is bound to the volume, or will be.
func createClaim(ctx context.Context, c client.Client, claim *corev1.PersistentVolumeClaim) error {
	err := c.Create(ctx, claim)
	if err == nil {
		return nil
	}
	if apierrors.IsAlreadyExists(err) {
		if err = free(ctx, c, claim); err == nil {
			return nil
		}
	}
	return fmt.Errorf("make claim %s/%s: %w; its PersistentVolume %s is there, so call undelete again", claim.Namespace, claim.Name, err, claim.Spec.VolumeName)
}
