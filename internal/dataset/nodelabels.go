package dataset

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/flexlvm/flexlvm/internal/replica"
)

// labelled returns the nodes that carry the dataset's label, read from the API server.
func (r *reconciler) labelled(ctx context.Context, observed *Observed) ([]string, error) {
	nodes := &metav1.PartialObjectMetadataList{}
	nodes.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	if err := r.live.List(ctx, nodes, client.HasLabels{observed.label()}); err != nil {
		return nil, fmt.Errorf("list nodes with label %s: %w", observed.label(), err)
	}
	var out []string
	for _, node := range nodes.Items {
		out = append(out, node.Name)
	}
	slices.Sort(out)
	return out, nil
}

// labelledOnce is labelled for one of many volumes of a VolumeManager. From the fifth volume on, it answers
// from one list of all nodes, so that made-up former volumes do not cost one list each. Before any deletion,
// confirm lists again.
func (r *reconciler) labelledOnce(ctx context.Context, observed *Observed, s *cacheView) ([]string, error) {
	const few = 4
	if s.asked++; s.asked <= few {
		return r.labelled(ctx, observed)
	}
	if s.labelled == nil {
		all, err := r.allLabelled(ctx)
		if err != nil {
			return nil, err
		}
		s.labelled = all
	}
	return s.labelled[observed.label()], nil
}

// allLabelled returns the names of the nodes by dataset label, read from the API server.
func (r *reconciler) allLabelled(ctx context.Context) (map[string][]string, error) {
	out := map[string][]string{}
	nodes := &metav1.PartialObjectMetadataList{}
	for next := ""; ; {
		nodes.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
		if err := r.live.List(ctx, nodes, client.Limit(500), client.Continue(next)); err != nil {
			return nil, fmt.Errorf("list nodes: %w", err)
		}
		for i := range nodes.Items {
			for label := range nodes.Items[i].Labels {
				if replica.IsNodeLabel(label) {
					out[label] = append(out[label], nodes.Items[i].Name)
				}
			}
		}
		if next = nodes.Continue; next == "" {
			break
		}
	}
	for _, names := range out {
		slices.Sort(names)
	}
	return out, nil
}

// labelNode labels the node of a replica for pods, unless the replica is to be evicted or its volume group is missing,
// and reports whether it did.
func (p *planner) labelNode(r *Replica, can bool) bool {
	can = can && r.Node != "" && !r.GroupMissing && r.Volume != nil && r.Volume.Annotations[replica.AnnotationEvict] == ""
	if can {
		p.labels[r.Node] = true
	}
	return can
}
