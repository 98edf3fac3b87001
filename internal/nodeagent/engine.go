package nodeagent

import (
	"context"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Engine is what the daemon asks of its node: *node.Engine, in production. Every
// call may be repeated, and may be made by two daemons at once.
type Engine interface {
	// Inventory gives everything that LVM shows, as of one moment.
	Inventory(ctx context.Context) (inventory.Inventory, error)
	// Heal puts right what a boot or a crash has left of a volume that is wanted.
	Heal(ctx context.Context, ref node.Ref) error
	// Release moves a volume on whose PersistentVolume is gone for good. Once it has
	// returned nil this lasts, also over a power cut.
	Release(ctx context.Context, ref node.Ref, to volume.State, d volume.Disposal) error
	// Remove takes an unreferenced volume away, and finishes what it or another has
	// begun to. It may take as long as wiping takes.
	Remove(ctx context.Context, ref node.Ref) error
	// MakeClone makes a volume that begins as a copy of another, with all that it holds
	// by then, where it is not there yet.
	MakeClone(ctx context.Context, spec volume.Spec) error
}

func refOf(v inventory.Volume) node.Ref {
	return node.Ref{Group: v.Group, Name: v.Name.Undoomed(), Cluster: v.Cluster, Kind: v.Kind, UUID: v.UUID}
}

func refOfClaim(c persistentvolume.Volume) node.Ref {
	return node.Ref{Group: c.Group, Name: c.Volume, Cluster: c.Cluster, Kind: c.Kind}
}
