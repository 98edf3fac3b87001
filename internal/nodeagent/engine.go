package nodeagent

import (
	"context"
	"time"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Engine is the node as the daemon needs it: *node.Engine, in production. Every call is idempotent, and two
// daemons may make calls at the same time.
type Engine interface {
	// Inventory returns all volumes and pools, as of one moment.
	Inventory(ctx context.Context) (inventory.Inventory, error)
	// HadVolume reports whether this node has or had a volume of that name, so that it is not created again once
	// it is gone, and when it was last used. An error means that the records cannot be read.
	HadVolume(g volume.Group, n volume.Name) (lastUsed time.Time, is bool, err error)
	// Heal repairs a volume that is wanted after a boot or a crash.
	Heal(ctx context.Context, ref node.Ref) error
	// Release changes the state of a volume whose PersistentVolume is released or deleted. Once it has returned
	// nil, the new state is durable, even in a power failure.
	Release(ctx context.Context, ref node.Ref, to volume.State, d volume.Disposal) error
	// SetStateOf changes the state of a volume at a person's request, if the volume has this file system.
	SetStateOf(ctx context.Context, ref node.Ref, fs string, to volume.State) (inventory.Volume, error)
	// Remove removes an unreferenced volume, or finishes an earlier removal. It takes as long as wiping,
	// perhaps hours.
	Remove(ctx context.Context, ref node.Ref) error
	// RemoveAll does what Remove does to each of several volumes, in fewer LVM commands,
	// and returns an error or nil for each.
	RemoveAll(ctx context.Context, refs []node.Ref) []error
	// CreateCloneAhead creates a volume as a copy of another one's current content, if it does not exist yet.
	CreateCloneAhead(ctx context.Context, spec volume.Spec) error
	// CreateAhead creates an empty volume before its first mount, if it is not ready yet and wanted returns nil.
	CreateAhead(ctx context.Context, spec volume.Spec, wanted func(context.Context) error) error
	// MakeSnapshot takes a snapshot of another volume, if it has not been taken yet and wanted returns nil,
	// and returns it.
	MakeSnapshot(ctx context.Context, r node.SnapshotRequest, wanted func(context.Context) error) (inventory.Volume, error)
	// MakeSnapshotGroup takes snapshots of several volumes at one instant, all or none, and
	// returns them in the order of their groups and names.
	MakeSnapshotGroup(ctx context.Context, requests []node.SnapshotRequest, wanted func(context.Context) error) ([]inventory.Volume, error)
	// ThawLeft thaws the volumes that a killed process has left frozen.
	ThawLeft(ctx context.Context) error
}

func refOf(v inventory.Volume) node.Ref {
	return node.Ref{Group: v.Group, DirectoryPool: v.DirectoryPool, Name: v.Name.Undoomed(), Cluster: v.Cluster, Kind: v.Kind, UUID: v.UUID}
}

func refOfClaim(c persistentvolume.Volume) node.Ref {
	return node.Ref{Group: c.Group, DirectoryPool: c.Shape.DirectoryPool, Name: c.Volume, Cluster: c.Cluster, Kind: c.Kind}
}
