package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/flexlvm/flexlvm/internal/migration"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// doorOptions are the arguments and flags of the command.
type doorOptions struct {
	door   pv.Door
	dryRun bool
	class  string
	wait   time.Duration
}

func doorCommand(s *session) *cobra.Command {
	var o doorOptions
	cmd := &cobra.Command{
		Use:   "door csi|flex {CLAIM... | --all-of-class CLASS}",
		Short: "Move existing volumes to the other driver, CSI or FlexVolume",
		Long: `door recreates the PersistentVolumes of these claims, so that kubelet mounts their volumes with
the CSI driver (csi) or the FlexVolume driver (flex). Nothing is copied; claim, volume and data
stay as they are. No pod may use a claim while it moves: claims in use are skipped. If the
command was interrupted, run it again to continue. It needs permission to create, patch and
delete PersistentVolumes. See docs/doors.md.`,
		Example: `  kubectl flexlvm door csi data -n shop
  kubectl flexlvm door csi --all-of-class flexlvm --dry-run`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("name the driver, csi or flex, and the claims to move to it")
			}
			return checkNamed(cmd, args, "all-of-class", "namespace")
		},
		ValidArgs: []string{string(pv.CSI), string(pv.Flex)},
		RunE:      func(cmd *cobra.Command, args []string) error { return o.run(cmd, s, args) },
	}
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "only print for each claim whether it would move, or why not")
	cmd.Flags().StringVar(&o.class, "all-of-class", "", "move all claims of this StorageClass, in all namespaces or in --namespace")
	cmd.Flags().DurationVar(&o.wait, "timeout", 2*time.Minute, "how long to wait for each claim to be bound again")
	return cmd
}

func (o *doorOptions) run(cmd *cobra.Command, s *session, args []string) error {
	var err error
	if o.door, err = pv.ParseDoor("door", args[0]); err != nil {
		return err
	}
	if names := args[1:]; (len(names) == 0) == (o.class == "") {
		return fmt.Errorf("%q: give either the names of claims or --all-of-class", names)
	}
	c, err := s.client()
	if err != nil {
		return err
	}
	claims, err := o.claims(cmd.Context(), c, s, args[1:])
	if err != nil {
		return err
	}
	if len(claims) == 0 {
		fmt.Fprintf(cmd.OutOrStdout(), "no claim of StorageClass %s has a volume in %s\n", o.class, inNamespace(s.overrides.Context.Namespace))
	}
	return o.moveAll(cmd, &migration.Mover{Client: c, Timeout: o.wait}, claims)
}

// claims returns the requested claims: those in names, or all of the StorageClass.
func (o *doorOptions) claims(ctx context.Context, c client.Client, s *session, names []string) (out []types.NamespacedName, err error) {
	if o.class == "" {
		namespace, err := s.namespace()
		for _, name := range names {
			out = append(out, types.NamespacedName{Namespace: namespace, Name: name})
		}
		return out, err
	}
	err = list(ctx, c, func(l *corev1.PersistentVolumeClaimList) {
		for i := range l.Items {
			claim := &l.Items[i]
			if claim.Spec.StorageClassName != nil && *claim.Spec.StorageClassName == o.class && claim.Spec.VolumeName != "" {
				out = append(out, client.ObjectKeyFromObject(claim))
			}
		}
	}, client.InNamespace(s.overrides.Context.Namespace))
	return out, err
}

// moveAll continues past claims that cannot move now, and fails if there were any.
func (o *doorOptions) moveAll(cmd *cobra.Command, m *migration.Mover, claims []types.NamespacedName) error {
	out, left := controlFilter{cmd.OutOrStdout()}, 0
	for _, claim := range claims {
		doing, err := m.Check(cmd.Context(), claim, o.door)
		if err == nil && doing != "" && !o.dryRun {
			err = m.Move(cmd.Context(), claim, o.door)
		}
		switch {
		case err != nil:
			left++
			fmt.Fprintf(out, "%s: not moved: %v\n", claim, err)
		case doing == "":
			fmt.Fprintf(out, "%s: already uses driver %s\n", claim, o.door)
		case o.dryRun:
			fmt.Fprintf(out, "%s: would move to driver %s; first step: %s\n", claim, o.door, doing)
		default:
			fmt.Fprintf(out, "%s: moved to driver %s\n", claim, o.door)
		}
		if cmd.Context().Err() != nil {
			return cmd.Context().Err()
		}
	}
	if left > 0 {
		return fmt.Errorf("%d of %s not moved", left, volume.Pluralize(len(claims), "claim", "claims"))
	}
	return nil
}
