// Package inventory describes what a node holds: volumes and the pools that they are cut
// from, as the engine reports them. No I/O.
package inventory

import (
	"slices"
	"time"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// An Inventory is all that this node holds, from one report of LVM.
type Inventory struct {
	Pools   []Pool
	Volumes []Volume
}

// Exported reports whether the volume group of a volume is exported.
func (in Inventory) Exported(v *Volume) bool {
	return slices.ContainsFunc(in.Pools, func(p Pool) bool { return p.Exported && p.GroupUUID() == v.GroupUUID })
}

// A Pool is what volumes are cut from: a volume group, without the flexlvm thin and directory
// pools in it, or such a pool.
type Pool struct {
	Name         volume.PoolName
	UUID         string
	Size         volume.Bytes
	Free         volume.Bytes
	Extent       volume.Bytes
	MetadataSize volume.Bytes // of the group, LVM's own
	MetadataFree volume.Bytes
	LVs          int // logical volumes, flexlvm's or not
	Missing      int // devices that LVM cannot find
	// Exported: LVM neither changes nor activates anything in the volume group.
	Exported bool
	// DeviceFree is what is free on each physical device that LVM may allocate from, the
	// most first.
	DeviceFree []volume.Bytes
	// Devices are the paths of these physical devices, in the same order.
	Devices []string
	// Thin is nil but for a thin pool, and Directories but for a directory pool.
	Thin        *ThinPool
	Directories *DirectoryPool
}

// GroupUUID returns the UUID of the volume group that the pool is, or is in.
func (p Pool) GroupUUID() string {
	switch {
	case p.Thin != nil:
		return p.Thin.GroupUUID
	case p.Directories != nil:
		return p.Directories.GroupUUID
	}
	return p.UUID
}

// Holds reports whether a volume lies in the pool, and not in another of its name.
func (p Pool) Holds(v *Volume) bool { return v.Pool() == p.Name && v.GroupUUID == p.GroupUUID() }

// Unseen reports whether nobody can tell which volumes are in the pool.
func (p Pool) Unseen() bool { return p.Directories != nil && !p.Directories.Known }

// ContentUnknown reports whether nobody can tell what is in the pool, or how much of it is free.
func (p Pool) ContentUnknown() bool { return p.Unseen() || p.Thin != nil && !p.Thin.Known }

// A DirectoryPool holds what only a directory pool has.
type DirectoryPool struct {
	GroupUUID string
	// Known: it was looked into. Otherwise nobody can tell which volumes are in it.
	Known bool
	// Unfit says why no volume may be made in it, however much room it has; empty if one
	// may.
	Unfit string
}

// A ThinPool holds what only a thin pool has.
type ThinPool struct {
	GroupUUID string
	// Known: LVM reports how full it is. Otherwise Free and MetadataUsed mean nothing.
	Known bool
	// Metadata is the size of its own metadata, of which MetadataUsed is in use.
	Metadata     volume.Bytes
	MetadataUsed volume.Bytes
	// Others is what volumes without flexlvm's tag hold, which may be blocks that they share with
	// flexlvm's; without those for which LVM reports no usage, whose size is OthersUntold.
	Others       volume.Bytes
	OthersUntold volume.Bytes
	// Unfit says why no volume may be made in it, however much room it has; empty if one
	// may.
	Unfit string
}

// A Volume is what this node knows of one of its volumes.
type Volume struct {
	Group     volume.Group `json:"group"`
	GroupUUID string       `json:"groupUUID"`
	Name      volume.Name  `json:"name"`
	UUID      string       `json:"uuid"`
	State     volume.State `json:"state,omitempty"`
	Size      volume.Bytes `json:"size"`       // what the user may write
	Device    volume.Bytes `json:"deviceSize"` // what it takes from its pool, as of now
	Full      volume.Bytes `json:"fullSize"`   // what it takes once all of it is written; the same unless it is thin
	// On is what it holds of each physical device, by path; nil where that is not known.
	On map[string]volume.Bytes `json:"-"`
	// Shape is what LVM says it is; empty where that is none of our layouts.
	volume.Shape
	Namespace string      `json:"namespace,omitempty"`
	Cluster   string      `json:"cluster,omitempty"`
	Kind      volume.Kind `json:"kind,omitempty"`
	FS        string      `json:"filesystemUUID,omitempty"`
	// FSType is the kind of its file system.
	FSType volume.FSType `json:"fsType,omitempty"`
	// Clone is the UUID of the file system that the volume is an unfinished copy of.
	Clone string `json:"cloneOfFilesystemUUID,omitempty"`
	// Fill is how far such a copy is, where it is made byte by byte.
	Fill volume.Fill `json:"fill,omitempty"`
	// HalfZeroed: not all of a raw block volume was zeroed, so no pod has had it.
	HalfZeroed bool `json:"halfZeroed,omitempty"`
	// Of is the volume that it is a copy-on-write snapshot of.
	Of volume.Name `json:"copyOnWriteOf,omitempty"`
	// Stored is how much of such a snapshot's store is in use.
	Stored volume.Bytes `json:"stored,omitempty"`
	// Overflowed: such a snapshot's store was too small, so it holds nothing any more.
	Overflowed bool `json:"overflowed,omitempty"`
	// Encrypted: its content lies in a LUKS2 container.
	Encrypted bool      `json:"encrypted,omitempty"`
	Created   time.Time `json:"created"`
	LastUsed  time.Time `json:"lastUsed"` // Created where nothing else is known
	// LastTrimmed is when it was last trimmed to the end; zero if never, or if that is unknown.
	LastTrimmed time.Time `json:"lastTrimmed,omitzero"`
	// Released is when the volume left state ready and became unreferenced or retained;
	// LastUsed if nothing else is known.
	Released time.Time      `json:"released"`
	Reclaim  volume.Reclaim `json:"reclaim,omitempty"`
	Wipe     volume.Wipe    `json:"wipe,omitempty"`
	Origin   bool           `json:"origin,omitempty"` // snapshots depend on it
	Active   bool           `json:"active"`
	Open     bool           `json:"open"` // in any mount namespace
	Mounts   []string       `json:"mounts,omitempty"`
	Problem  string         `json:"problem,omitempty"` // what a person should look at
	// Unknown: the problem is a tag that this release does not know.
	Unknown bool `json:"-"`
	// Degraded: copies of the volume are missing or out of date, as Problem says. It can
	// still be used.
	Degraded bool `json:"degraded,omitempty"`
	// SyncPercent is how much of a RAID is in sync, as LVM prints it.
	SyncPercent string `json:"syncPercent,omitempty"`
}

// InUse reports whether the volume is open, in any mount namespace, or mounted.
func (v *Volume) InUse() bool { return v.Open || len(v.Mounts) > 0 }

// Pool returns the pool that the volume is cut from.
func (v *Volume) Pool() volume.PoolName { return v.Shape.Pool(v.Group) }
