package nodeagent

import (
	"context"
	"time"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Engine is what the daemon needs of its node: *node.Engine, in production. Every call
// may be repeated, and may be made by two daemons at once.
type Engine interface {
	// Inventory returns everything that LVM shows, as of one moment.
	Inventory(ctx context.Context) (inventory.Inventory, error)
	// Served reports whether this node has or had a volume of that name, so that none is made
	// anew if it is gone, and when it was last used. The error says that its records cannot tell.
	Served(g volume.Group, n volume.Name) (lastUsed time.Time, is bool, err error)
	// Heal repairs a volume that is wanted after a boot or a crash.
	Heal(ctx context.Context, ref node.Ref) error
	// Release changes the state of a volume whose PersistentVolume is gone for good. Once
	// it has returned nil, the new state survives even a power cut.
	Release(ctx context.Context, ref node.Ref, to volume.State, d volume.Disposal) error
	// SetStateOf changes the state of a volume on a person's word, if it has this file system.
	SetStateOf(ctx context.Context, ref node.Ref, fs string, to volume.State) (inventory.Volume, error)
	// Remove removes an unreferenced volume, and finishes removals begun earlier. It may
	// take as long as wiping takes.
	Remove(ctx context.Context, ref node.Ref) error
	// RemoveAll does what Remove does to each of several volumes, in fewer LVM commands,
	// and returns an error or nil for each.
	RemoveAll(ctx context.Context, refs []node.Ref) []error
	// MakeClone makes a volume as a copy of another, with what that holds now, if it does
	// not exist yet.
	MakeClone(ctx context.Context, spec volume.Spec) error
	// Prepare makes an empty volume ahead of its first mount, if it is not ready yet and wanted
	// agrees.
	Prepare(ctx context.Context, spec volume.Spec, wanted func(context.Context) error) error
	// MakeSnapshotIf takes a snapshot of another volume, if that has not been done yet and
	// wanted agrees, and returns it.
	MakeSnapshotIf(ctx context.Context, o node.Order, wanted func(context.Context) error) (inventory.Volume, error)
	// MakeSnapshotGroupIf takes snapshots of several volumes at one instant, all or none, and
	// returns them in the order of their groups and names.
	MakeSnapshotGroupIf(ctx context.Context, orders []node.Order, wanted func(context.Context) error) ([]inventory.Volume, error)
	// ThawLeft thaws the volumes that were left frozen when an earlier process was killed.
	ThawLeft(ctx context.Context) error
}

func refOf(v inventory.Volume) node.Ref {
	return node.Ref{Group: v.Group, DirectoryPool: v.DirectoryPool, Name: v.Name.Undoomed(), Cluster: v.Cluster, Kind: v.Kind, UUID: v.UUID}
}

func refOfClaim(c persistentvolume.Volume) node.Ref {
	return node.Ref{Group: c.Group, DirectoryPool: c.Shape.DirectoryPool, Name: c.Volume, Cluster: c.Cluster, Kind: c.Kind}
}
