package gc

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Claim is what the API says of one PersistentVolume of ours on this node.
type Claim struct {
	PV        string
	UID       types.UID
	Group     volume.Group
	GroupUUID string // empty: any group of that name
	Volume    volume.Name
	Cluster   string // may be empty
	Kind      volume.Kind
	Size      volume.Bytes // what the user may write by now
	Inodes    int64
	// Charged is what the volume takes from its pool when it is made.
	Charged        volume.Bytes
	ClaimNamespace string // empty where no claim is named
	ClaimName      string
	Phase          corev1.PersistentVolumePhase
	ReclaimPolicy  corev1.PersistentVolumeReclaimPolicy
	Deleting       bool
	HasFinalizer   bool // ours
	Protected      bool // finalizers of others are on it
	Disposal       node.Disposal
}

// ClaimOf reads a PersistentVolume as strictly as the driver does. A
// PersistentVolume that it cannot read is a person's to look at, and what it may
// name (NamesOf) counts as wanted.
func ClaimOf(pv *corev1.PersistentVolume) (Claim, error) { return Claim{}, nil }

// NamesOf are the volumes that a PersistentVolume may mean which ClaimOf could
// not read: they go into View.Unreadable.
func NamesOf(pv *corev1.PersistentVolume) []string { return []string{pv.Name} }
