// Package inventory describes a node's volumes and the pools that hold them, as the engine reports them. It
// does no I/O.
package inventory

import (
	"slices"
	"time"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// An Inventory is all volumes and pools of this node, from one report of LVM.
type Inventory struct {
	Pools   []Pool
	Volumes []Volume
}

// Exported reports whether the volume group of a volume is exported.
func (in Inventory) Exported(v *Volume) bool {
	return slices.ContainsFunc(in.Pools, func(p Pool) bool { return p.Exported && p.GroupUUID() == v.GroupUUID })
}

// A Pool is where volumes are allocated: a flexlvm thin or directory pool, or the rest of a volume group.
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
	// Exported: the volume group is exported, so LVM neither changes nor activates anything in it.
	Exported bool
	// DeviceFree is the free space on each physical device that LVM may allocate from, largest first; nil: unknown.
	DeviceFree []volume.Bytes
	// Devices are the paths of these physical devices, in the same order.
	Devices []string
	// Thin is set for thin pools only, Directories for directory pools only.
	Thin        *ThinPool
	Directories *DirectoryPool
}

// GroupUUID returns the UUID of the pool's volume group.
func (p Pool) GroupUUID() string {
	switch {
	case p.Thin != nil:
		return p.Thin.GroupUUID
	case p.Directories != nil:
		return p.Directories.GroupUUID
	}
	return p.UUID
}

// Holds reports whether a volume is in this pool, not in another pool of the same name.
func (p Pool) Holds(v *Volume) bool { return v.Pool() == p.Name && v.GroupUUID == p.GroupUUID() }

// VolumesUnknown reports whether the volumes in the pool are unknown.
func (p Pool) VolumesUnknown() bool { return p.Directories != nil && !p.Directories.Known }

// ContentUnknown reports whether the pool's volumes or its free space are unknown.
func (p Pool) ContentUnknown() bool { return p.VolumesUnknown() || p.Thin != nil && !p.Thin.Known }

// A DirectoryPool holds the fields of a directory pool.
type DirectoryPool struct {
	GroupUUID string
	// Known: the pool's content was read. Otherwise its volumes are unknown.
	Known bool
	// Unfit says why no volume may be created in the pool, whatever its free space; empty if one may.
	Unfit string
}

// A ThinPool holds the fields of a thin pool.
type ThinPool struct {
	GroupUUID string
	// Known: LVM reports the pool's usage. Otherwise Free and MetadataUsed mean nothing.
	Known bool
	// Metadata is the size of the pool's own metadata, of which MetadataUsed is in use.
	Metadata     volume.Bytes
	MetadataUsed volume.Bytes
	// Others is the usage of volumes without flexlvm's tag, which may include blocks that they share with
	// flexlvm's volumes. Unreported is the size of those for which LVM reports no usage; Others excludes
	// them.
	Others     volume.Bytes
	Unreported volume.Bytes
	// Unfit says why no volume may be created in the pool, whatever its free space; empty if one may.
	Unfit string
}

// A Volume is the state of a volume on this node.
type Volume struct {
	Group             volume.Group `json:"group"`
	GroupUUID         string       `json:"groupUUID"`
	Name              volume.Name  `json:"name"`
	UUID              string       `json:"uuid"`
	State             volume.State `json:"state,omitempty"`
	Size              volume.Bytes `json:"size"`       // usable size
	Allocated         volume.Bytes `json:"deviceSize"` // space it currently occupies in its pool
	AllocatedWhenFull volume.Bytes `json:"fullSize"`   // space it occupies once fully written; the same as Allocated unless it is thin
	// ByDevice is the space it occupies on each physical device, by path; nil if that is unknown.
	ByDevice map[string]volume.Bytes `json:"-"`
	// Shape is the layout that LVM reports; empty if it is not one of flexlvm's layouts.
	volume.Shape
	Namespace string      `json:"namespace,omitempty"`
	Cluster   string      `json:"cluster,omitempty"`
	Kind      volume.Kind `json:"kind,omitempty"`
	FS        string      `json:"filesystemUUID,omitempty"`
	// FSType is the kind of its file system.
	FSType volume.FSType `json:"fsType,omitempty"`
	// CloneOfFS is the UUID of the source file system, if the volume is an unfinished copy.
	CloneOfFS string `json:"cloneOfFilesystemUUID,omitempty"`
	// Fill is the progress of such a copy, if it is copied byte by byte.
	Fill volume.Fill `json:"fill,omitempty"`
	// PartlyZeroed: a raw block volume was not zeroed completely, so no pod has used it.
	PartlyZeroed bool `json:"halfZeroed,omitempty"`
	// SnapshotOf is the volume of which this volume is a copy-on-write snapshot.
	SnapshotOf volume.Name `json:"copyOnWriteOf,omitempty"`
	// Stored is how much of such a snapshot's store is in use.
	Stored volume.Bytes `json:"stored,omitempty"`
	// Overflowed: such a snapshot's store was too small, or could not be written, so its content is lost. It stays so
	// even if LVM shows the snapshot as valid again.
	Overflowed bool `json:"overflowed,omitempty"`
	// Encrypted: the content is in a LUKS2 container.
	Encrypted bool      `json:"encrypted,omitempty"`
	Created   time.Time `json:"created"`
	LastUsed  time.Time `json:"lastUsed"` // Created if nothing else is known
	// LastTrimmed is when the last complete trim ended; zero if there was none, or if that is unknown.
	LastTrimmed time.Time `json:"lastTrimmed,omitzero"`
	// Released is when the volume left state ready and became unreferenced or retained; LastUsed if nothing
	// else is known.
	Released     time.Time      `json:"released"`
	Reclaim      volume.Reclaim `json:"reclaim,omitempty"`
	Wipe         volume.Wipe    `json:"wipe,omitempty"`
	HasSnapshots bool           `json:"origin,omitempty"` // snapshots depend on it
	Active       bool           `json:"active"`
	Open         bool           `json:"open"` // in any mount namespace
	Mounts       []string       `json:"mounts,omitempty"`
	Problem      string         `json:"problem,omitempty"` // what needs a person's attention
	// Unknown: the problem is a tag that is unknown to this release.
	Unknown bool `json:"-"`
	// Degraded: copies of the volume are missing, incomplete or out of date, or differ, as Problem says. The volume can
	// still be used.
	Degraded bool `json:"degraded,omitempty"`
	// Outdated: the volume must not be used, because its copies are, or may be, out of date, as Problem says. Degraded is
	// not set then.
	Outdated bool `json:"outdated,omitempty"`
	// Copied: the only problem is that another volume group has a volume with the same UUID. The volume can still be used.
	Copied bool `json:"-"`
	// SyncPercent is how much of a RAID volume is in sync, as LVM prints it.
	SyncPercent string `json:"syncPercent,omitempty"`
}

// FullName returns the volume's group and name in the format that LVM's commands accept.
func (v *Volume) FullName() string { return string(v.Group) + "/" + string(v.Name) }

// ID returns what identifies the volume on this node, as lvm.LogicalVolume's ID does.
func (v *Volume) ID() string { return v.GroupUUID + "/" + v.UUID }

// InUse reports whether the volume is open, in any mount namespace, or mounted.
func (v *Volume) InUse() bool { return v.Open || len(v.Mounts) > 0 }

// Pool returns the pool that the volume is in.
func (v *Volume) Pool() volume.PoolName { return v.Shape.Pool(v.Group) }
