package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/replica"
)

func datasetRefreshCommand(s *session) *cobra.Command {
	return &cobra.Command{
		Use:   "refresh NAME...",
		Short: "Update datasets from their sources, node by node",
		Long: `refresh requests the current version of the sources of VolumeManagers. Each node loads it beside the
version that it has. Pods that start afterwards see the new version; running pods keep the old one.
dataset NAME -o wide shows which version each node has.`,
		Example: "  kubectl flexlvm dataset refresh imagenet",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fmt.Errorf("%q: name the VolumeManagers; kubectl flexlvm dataset lists them", args)
			}
			return checkNamed(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.client()
			if err != nil {
				return err
			}
			namespace, err := s.namespace()
			if err != nil {
				return err
			}
			return refreshDatasets(cmd.Context(), c, namespace, args, time.Now(), cmd.OutOrStdout())
		},
	}
}

// refreshDatasets requests a refresh of VolumeManagers.
func refreshDatasets(ctx context.Context, c client.Client, namespace string, names []string, now time.Time, out io.Writer) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"annotations": map[string]string{replica.AnnotationRefresh: now.UTC().Format(time.RFC3339Nano)},
	}})
	if err != nil {
		return fmt.Errorf("refresh: %w", err)
	}
	for _, name := range names {
		vm := &flexlvmv1.VolumeManager{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		if err := c.Patch(ctx, vm, client.RawPatch(types.MergePatchType, patch)); err != nil {
			return fmt.Errorf("refresh VolumeManager %s/%s: %w", namespace, name, err)
		}
		fmt.Fprintf(out, "VolumeManager %s/%s: refresh requested; the nodes load the new version node by node\n", namespace, name)
	}
	return nil
}
