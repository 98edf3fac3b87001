package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
)

// pollInterval is the interval at which to check the node's progress.
const pollInterval = 500 * time.Millisecond

// await waits until the node has removed the annotation from the PersistentVolume, which it does once the
// volume is ready, or reports why it cannot. provenance says where the volume comes from.
func (o *undeleteOptions) await(ctx context.Context, c client.Client, made *corev1.PersistentVolume, provenance string, out io.Writer) error {
	ref := made.Spec.ClaimRef
	if o.wait <= 0 {
		fmt.Fprintf(out, "PersistentVolume %s and claim %s/%s are created; the node restores the volume (%s), and reports the result in an event on them\n", made.Name, ref.Namespace, ref.Name, provenance)
		return nil
	}
	err := wait.PollUntilContextTimeout(ctx, pollInterval, o.wait, true, func(ctx context.Context) (bool, error) {
		now := &corev1.PersistentVolume{}
		if err := c.Get(ctx, client.ObjectKeyFromObject(made), now); err != nil {
			return false, fmt.Errorf("read PersistentVolume %s: %w", made.Name, err)
		}
		if now.Annotations[pv.AnnotationUndelete] == "" {
			return true, nil
		}
		return false, refusal(ctx, c, now)
	})
	if wait.Interrupted(err) && ctx.Err() == nil {
		return fmt.Errorf("the node did not restore the volume within %s; PersistentVolume %s and the claim exist, and the node continues: see kubectl describe pv %s, and check whether the node daemon runs there", o.wait, made.Name, made.Name)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "volume %s is ready again, for claim %s/%s (%s)\n", made.Name, ref.Namespace, ref.Name, provenance)
	return nil
}

// refusal returns the node's error for a volume that it cannot restore. It returns nil if events cannot be
// read.
func refusal(ctx context.Context, c client.Client, object *corev1.PersistentVolume) error {
	events := &corev1.EventList{}
	selector := fields.AndSelectors(fields.OneTermEqualSelector("involvedObject.name", object.Name), fields.OneTermEqualSelector("reason", "VolumeNotUndeleted"))
	if err := c.List(ctx, events, client.InNamespace(metav1.NamespaceDefault), client.MatchingFieldsSelector{Selector: selector}); err != nil {
		return nil //nolint:nilerr // without permission to read events, the caller waits
	}
	for i := range events.Items {
		if e := &events.Items[i]; e.InvolvedObject.UID == object.UID {
			return fmt.Errorf("the node reports: %s", e.Message)
		}
	}
	return nil
}

// unfinished returns the PersistentVolume that an earlier call created for the claim, which may be missing. The
// node may have restored the volume meanwhile.
func (o *undeleteOptions) unfinished(ctx context.Context, c client.Client) (*corev1.PersistentVolume, bool) {
	all, err := persistentVolumes(ctx, c)
	if err != nil {
		return nil, false
	}
	name := o.wanted.Claim
	if o.as != "" {
		name = o.as
	}
	for i := range all {
		object := &all[i]
		parsed, err := persistentvolume.Parse(object)
		if err != nil || parsed.FS == "" || !parsed.Usable() || parsed.Deleting || parsed.ClaimNamespace != o.wanted.Namespace {
			continue
		}
		if name != "" && parsed.ClaimName != name || o.wanted.Volume != "" && string(parsed.Volume) != o.wanted.Volume {
			continue
		}
		return object, true
	}
	return nil, false
}

// agrees fails if a flag contradicts the PersistentVolume that an earlier call created.
func (o *undeleteOptions) agrees(there *corev1.PersistentVolume) error {
	policy, secret := "", "none"
	if o.policyGiven {
		policy = o.policy
	}
	if csi := there.Spec.CSI; csi != nil && csi.NodePublishSecretRef != nil {
		secret = csi.NodePublishSecretRef.Namespace + "/" + csi.NodePublishSecretRef.Name
	}
	for _, flag := range []struct{ name, there, here string }{
		{"--reclaim-policy", string(there.Spec.PersistentVolumeReclaimPolicy), policy},
		{"--storage-class", cmp.Or(there.Spec.StorageClassName, "none"), o.class},
		{"--door", string(persistentvolume.DoorOf(there)), o.door},
		{"--secret", secret, o.secret},
	} {
		if flag.here != "" && flag.here != flag.there {
			return fmt.Errorf("PersistentVolume %[1]s already exists from an earlier run, with %[2]s %[3]s instead of %[4]s; leave the flag out, or, once the reclaim policy of PersistentVolume %[1]s is Retain, delete it and its claim, and run undelete again when it is gone",
				there.Name, flag.name, flag.there, flag.here)
		}
	}
	return nil
}

// finish creates the claim of an existing PersistentVolume, which is on this node.
func (o *undeleteOptions) finish(ctx context.Context, c client.Client, object *corev1.PersistentVolume, node string, out io.Writer) error {
	if err := o.agrees(object); err != nil {
		return err
	}
	ref := object.Spec.ClaimRef
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: object.Spec.AccessModes, VolumeMode: object.Spec.VolumeMode, VolumeName: object.Name, StorageClassName: &object.Spec.StorageClassName,
			Resources: corev1.VolumeResourceRequirements{Requests: object.Spec.Capacity},
		},
	}
	there := &corev1.PersistentVolumeClaim{}
	err := c.Get(ctx, client.ObjectKeyFromObject(claim), there)
	if object.Status.Phase == corev1.VolumeBound && (apierrors.IsNotFound(err) || err == nil && there.DeletionTimestamp != nil) {
		return fmt.Errorf("claim %s/%s is being deleted, and its PersistentVolume %s still exists: see docs/undelete.md (when the PersistentVolume is still there)", ref.Namespace, ref.Name, object.Name)
	}
	if err == nil && there.Spec.VolumeName == object.Name && object.Annotations[pv.AnnotationUndelete] == "" {
		fmt.Fprintf(out, "claim %s/%s exists and its volume %s is ready: there is nothing to restore\n", ref.Namespace, ref.Name, object.Name)
		return nil
	}
	if err := checkClaimName(ctx, c, claim); err != nil {
		return err
	}
	if err := createClaim(ctx, c, claim); err != nil {
		return err
	}
	return o.await(ctx, c, object, "on node "+node, out)
}

// completeReleased completes the names of claims that were deleted.
func (s *session) completeReleased(cmd *cobra.Command, args []string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	c, err := s.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	namespace, err := s.namespace()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	all, err := nodeStorages(cmd.Context(), c)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for i := range all {
		for _, r := range all[i].Status.Released {
			if r.Namespace == namespace && r.Origin != nil && r.Origin.Claim != "" {
				names = append(names, r.Origin.Claim)
			}
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
