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

// undeleteOptions are the arguments and flags of the command.
type undeleteOptions struct {
	wanted overview.Wanted
	as     string
	class  string
	policy string
	// policyGiven: --reclaim-policy was set, so an existing PersistentVolume must have this policy.
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
		Short: "Restore the volume of a deleted claim",
		Long: `undelete restores the volume of a deleted claim, unless it was evicted: it creates its
PersistentVolume and its claim again, from what the node reports, and the node makes the volume
ready. It waits for the node and prints the result. Run again, it creates what an earlier run
could not. It needs permission to create PersistentVolumes.

The claim is created in the namespace of the volume (-n) and under its old name, or under that in
--as-claim. Nodes list the volumes that were released last. If a volume's claim is not known, or
several volumes had a claim of that name, select the volume with --volume. A PersistentVolume of
the claim that still exists counts as one of these volumes.

The reclaim policy is Retain unless you set another, so that deleting the new claim by mistake
does less harm. If the volume was evicted meanwhile, the node reports this, and no empty volume
takes its place.`,
		Example: `  kubectl flexlvm undelete data -n shop
  kubectl flexlvm undelete data -n shop --volume pvc-6e0bf2d2-3f6d-4b0e-9a55-0b9a8a3f7c11`,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := checkNamed(cmd, args, "volume", "node", "as-claim", "namespace"); err != nil {
				return err
			}
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
	f.StringVar(&o.wanted.Volume, "volume", "", "name of the volume, which is that of its former PersistentVolume")
	f.StringVar(&o.wanted.Node, "node", "", "node of the volume, if several nodes have one of that name")
	f.StringVar(&o.as, "as-claim", "", "name of the new claim (default: the old name)")
	f.StringVar(&o.class, "storage-class", "", "StorageClass of the new claim (default: that of the deleted claim)")
	f.StringVar(&o.policy, "reclaim-policy", string(corev1.PersistentVolumeReclaimRetain), "reclaim policy of the new PersistentVolume: Retain or Delete")
	f.StringVar(&o.door, "door", "", "driver that mounts the volume: flex, or csi if the CSI driver runs on the node (default: the old driver)")
	f.StringVar(&o.secret, "secret", "", "NAMESPACE/NAME of the Secret with the key of an encrypted volume")
	f.BoolVar(&o.dryRun, "dry-run", false, "only print the manifests, and change nothing")
	f.DurationVar(&o.wait, "wait", time.Minute, "how long to wait for the node; 0: do not wait")
	_ = cmd.RegisterFlagCompletionFunc("reclaim-policy", cobra.FixedCompletions([]string{"Retain", "Delete"}, cobra.ShellCompDirectiveNoFileComp)) // as in outputFlag
	_ = cmd.RegisterFlagCompletionFunc("door", cobra.FixedCompletions([]string{"flex", "csi"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (o *undeleteOptions) run(cmd *cobra.Command, s *session) error {
	if p := corev1.PersistentVolumeReclaimPolicy(o.policy); p != corev1.PersistentVolumeReclaimRetain && p != corev1.PersistentVolumeReclaimDelete {
		return fmt.Errorf("--reclaim-policy %q: give Retain or Delete", o.policy)
	}
	if o.wait < 0 {
		return fmt.Errorf("--wait %s: give 0 or more, such as 1m", o.wait)
	}
	o.policyGiven = cmd.Flags().Changed("reclaim-policy")
	if err := o.checkNames(); err != nil { // refuse before the first request to the cluster
		return err
	}
	if err := o.apply(&undelete.Request{}); err != nil {
		return err
	}
	c, err := s.client()
	if err != nil {
		return err
	}
	if o.wanted.Namespace, err = s.namespace(); err != nil {
		return err
	}
	return o.undelete(cmd.Context(), c, controlFilter{cmd.OutOrStdout()})
}

// checkNames refuses names that the API server would refuse for the claim, because the PersistentVolume would
// already exist then.
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
	there, err := readCandidates(ctx, c, o.wanted)
	if err != nil {
		return err
	}
	found, err := there.pick(overview.Find)
	if err != nil {
		// An earlier call may have restored the volume without creating the claim.
		switch again, unfinished := o.unfinished(ctx, c); {
		case !unfinished:
			return err
		case o.dryRun:
			return fmt.Errorf("%w\nPersistentVolume %s already exists from an earlier run; without --dry-run its claim is created", err, again.Name)
		default:
			return o.finish(ctx, c, again, there.nodeOf(again), out)
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
	if err := checkClaimName(ctx, c, claim); err != nil {
		return err
	}
	made, err := o.createVolume(ctx, c, object)
	if err != nil {
		return err
	}
	if err := createClaim(ctx, c, claim); err != nil {
		return err
	}
	return o.await(ctx, c, made, found.Provenance(), out)
}

// manifest returns the manifest to create: as the objects were, except for what the flags override.
func (o *undeleteOptions) manifest(ctx context.Context, c client.Client, found overview.Candidate) (pv.Manifest, error) {
	cluster := &corev1.Namespace{}
	if err := c.Get(ctx, client.ObjectKey{Name: "kube-system"}, cluster); err != nil {
		return pv.Manifest{}, fmt.Errorf("read namespace kube-system, whose UID identifies the cluster: %w", err)
	}
	node := &corev1.Node{}
	if err := c.Get(ctx, client.ObjectKey{Name: found.Node}, node); err != nil {
		return pv.Manifest{}, fmt.Errorf("read Node %s: %w", found.Node, err)
	}
	v := found.Inventory(string(cluster.UID))
	if err := undelete.CheckRestorable(v); err != nil {
		return pv.Manifest{}, err
	}
	r, err := found.Request()
	if err != nil {
		return pv.Manifest{}, err
	}
	r.Policy, r.Hostname = o.policy, node.Labels[corev1.LabelHostname]
	if r.Hostname == "" {
		r.Hostname = node.Name
	}
	if err := o.apply(&r); err != nil {
		return pv.Manifest{}, err
	}
	return undelete.Manifest(v, r)
}

// apply applies the flags to a request.
func (o *undeleteOptions) apply(r *undelete.Request) (err error) {
	for _, given := range []struct {
		what string
		into *string
	}{{o.wanted.Claim, &r.Claim}, {o.as, &r.Claim}, {o.class, &r.Class}} {
		if given.what != "" {
			*given.into = given.what
		}
	}
	if o.door != "" {
		if r.Door, err = pv.ParseDoor("--door", o.door); err != nil {
			return err
		}
	}
	if o.secret != "" {
		if r.Secret, err = pv.ParseSecretRef("--secret", o.secret); err != nil {
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

// checkClaimName fails if the claim's name is used by another claim. A StatefulSet creates a missing claim again.
func checkClaimName(ctx context.Context, c client.Client, claim *corev1.PersistentVolumeClaim) error {
	there := &corev1.PersistentVolumeClaim{}
	err := c.Get(ctx, client.ObjectKeyFromObject(claim), there)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("get claim %s/%s: %w", claim.Namespace, claim.Name, err)
	case there.Spec.VolumeName == claim.Spec.VolumeName:
		return nil
	}
	return fmt.Errorf("claim %s/%s already exists, with another volume (%q): a StatefulSet recreates a missing claim. Protect the old volume (kubectl flexlvm retain), make sure that the StatefulSet's persistentVolumeClaimRetentionPolicy.whenScaled is not Delete, because scaling down would then delete the claims of all pods that it stops, scale the StatefulSet down, delete the new claim if its data is not needed, and try again (docs/undelete.md has the commands); or give another name with --as-claim",
		claim.Namespace, claim.Name, there.Spec.VolumeName)
}

// createVolume creates the PersistentVolume, or returns the one that an earlier call created for the same
// claim.
func (o *undeleteOptions) createVolume(ctx context.Context, c client.Client, object *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	err := c.Create(ctx, object)
	if err == nil {
		return object, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create PersistentVolume %s: %w", object.Name, err)
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

// sameUndelete fails unless an existing PersistentVolume was created to restore the same volume for the same
// claim.
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
		return fmt.Errorf("PersistentVolume %s still exists (%s), so there is nothing to restore yet; see docs/undelete.md: when the PersistentVolume is still there", there.Name, is.Phase)
	case !is.Usable():
		return fmt.Errorf("PersistentVolume %s still exists (%s); delete it, and try again when it is gone", there.Name, is.Phase)
	case is.ClaimNamespace != be.ClaimNamespace || is.ClaimName != be.ClaimName:
		return fmt.Errorf("volume %s was already restored, for %s", there.Name, is.User())
	}
	return nil
}

// createClaim creates the claim, or accepts an existing one that is bound to the volume or will be.
func createClaim(ctx context.Context, c client.Client, claim *corev1.PersistentVolumeClaim) error {
	err := c.Create(ctx, claim)
	if err == nil {
		return nil
	}
	if apierrors.IsAlreadyExists(err) {
		if err = checkClaimName(ctx, c, claim); err == nil {
			return nil
		}
	}
	return fmt.Errorf("create claim %s/%s: %w; its PersistentVolume %s exists, so run undelete again to continue", claim.Namespace, claim.Name, err, claim.Spec.VolumeName)
}
