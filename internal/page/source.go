// Package page is a page in the browser of the user who runs kubectl flexlvm ui: what
// overview says of a cluster, as HTML, and the server that shows it to that user alone.
package page

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/overview"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Source is the cluster as the user may see it.
type Source interface {
	// Snapshot is what is known now. Nobody changes what it holds.
	Snapshot() Snapshot
	// Version grows with each change of the Snapshot.
	Version() uint64
	// Pods of a namespace.
	Pods(ctx context.Context, namespace string) ([]corev1.Pod, error)
	// Spec is the volume of a claim of this size and class.
	Spec(ctx context.Context, size, class string) (volume.Spec, error)
}

// A Snapshot is a cluster at one moment.
type Snapshot struct {
	overview.Objects // without pods
	Managers         []flexlvmv1.VolumeManager
	// Reading is whether some lists have not arrived yet.
	Reading bool
	// Lacks says of each kind that cannot be read why.
	Lacks []string
}
