// Package page implements the page of kubectl flexlvm ui in the user's browser: package overview's answers as
// HTML, and the server that serves them to that user only.
package page

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/overview"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Source provides the cluster as the user may read it.
type Source interface {
	// Snapshot returns the current objects. Callers must not modify them.
	Snapshot() Snapshot
	// Version increases with each change of the Snapshot.
	Version() uint64
	// Pods returns the pods of a namespace.
	Pods(ctx context.Context, namespace string) ([]corev1.Pod, error)
	// Spec returns the volume of a claim of this size and class.
	Spec(ctx context.Context, size, class string) (volume.Spec, error)
}

// A Snapshot is the state of a cluster at one moment.
type Snapshot struct {
	overview.Objects // without pods
	Managers         []flexlvmv1.VolumeManager
	// Reading reports whether some lists have not arrived yet.
	Reading bool
	// Lacks has an error text for each kind that cannot be read.
	Lacks []string
}
