package eviction

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A View is everything that one round knows. The caller must make sure that it is
// complete: if any list failed or is stale, there is no View and no round.
type View struct {
	Now               time.Time
	Cluster           string // UID of the kube-system namespace
	Pools             []inventory.Pool
	Volumes           []inventory.Volume
	PersistentVolumes []persistentvolume.Volume
	// Unreadable holds persistentvolume.NamesOf of every PersistentVolume of this node
	// that persistentvolume.Parse could not read. Volumes of these names count as wanted,
	// in any group.
	Unreadable []string
	// KeptElsewhere holds the UUIDs of volumes that PersistentVolumes keep which are not among
	// PersistentVolumes: their labels say that they are of another node, or of none.
	KeptElsewhere map[string]bool
	// OrphansEvicted is how many orphans were evicted within the last OrphanWindow, as
	// far as the caller knows. They count against OrphanShare: a limit on one plan
	// alone would only spread the loss over some rounds.
	OrphansEvicted int
	// Users holds pods of this node that have not ended, by the claims that they name.
	Users map[ClaimKey]string
	// PodsKnown: Users comes from the API. Otherwise any volume may be in use.
	PodsKnown bool
	// Removing holds the UUIDs of volumes that are being removed, whatever their State was when
	// the node was looked at. Their room counts as about to be free, so that none goes in their
	// stead.
	Removing map[string]bool
	// StartsUntil is until when evictions that nobody waits for are put off; see Starts.
	StartsUntil time.Time
	// WentBack says by which resourceVersions the API server has gone back in time, as if it had been restored
	// from a backup; empty if it has not. It may lack PersistentVolumes that were made since that backup, and
	// claims that others were given to.
	WentBack string
	// Lost holds the volumes of PersistentVolumes that the node has had and has no more. True: its records show
	// that, or that the replica is complete. False: its records cannot be read, so it may have had them. No room
	// is made for either: what a node has had is never made anew.
	Lost map[Key]bool
}

// staysGone reports whether the volume of a PersistentVolume is not made again once it is gone: it
// had been brought back (FS), is a snapshot that was taken, or was on this node before.
func (view View) staysGone(c *persistentvolume.Volume) bool {
	_, lost := view.Lost[KeyOfPersistentVolume(c)]
	return c.FS != "" || c.Taken || lost
}

// isBeingRemoved reports whether a volume is being removed that was not doomed yet when it was seen.
func (view View) isBeingRemoved(v *inventory.Volume) bool {
	return v.State == volume.Unreferenced && view.Removing[v.UUID]
}

// restored says that WentBack is not empty.
func (view View) restored() string {
	return fmt.Sprintf("the API server has gone back in time (%s), as if it had been restored from a backup", view.WentBack)
}

// A ClaimKey names a PersistentVolumeClaim.
type ClaimKey struct{ Namespace, Name string }

// A Key names a volume on this node.
type Key struct {
	group volume.Group
	name  volume.Name
}

func (k Key) String() string { return string(k.group) + "/" + string(k.name) }

// KeyOf returns the key of an existing volume.
func KeyOf(v *inventory.Volume) Key { return Key{v.Group, v.Name} }

// KeyOfPersistentVolume returns the key of the volume that a PersistentVolume names.
func KeyOfPersistentVolume(c *persistentvolume.Volume) Key { return Key{c.Group, c.Volume} }

// A lastingKey names a volume by the UUID of its group, which a rename of the group leaves as it is.
type lastingKey struct {
	groupUUID string
	name      volume.Name
}

// An index is a View by name.
type index struct {
	pools   map[volume.PoolName]inventory.Pool
	ailing  map[volume.Group]string // why nothing in the group may be changed
	volumes map[Key]*inventory.Volume
	named   map[Key]bool   // by any PersistentVolume, also one that is given up
	wanted  map[Key]string // by a PersistentVolume that is not given up; its name
	// retained are those whose PersistentVolume says Retain, given up or not: while it is
	// there, its volume does not go.
	retained map[Key]bool
	// renamed are those of wanted and of retained by the UUID of their group, where it is known: a
	// PersistentVolume goes on calling the group by the name that it had.
	renamed map[lastingKey]bool
	// anywhere holds the PersistentVolumes of wanted whatever their group: a group may
	// have been renamed on the node.
	anywhere map[volume.Name]string
	// copied holds the volumes that a copy is still to be taken of; the copy's
	// PersistentVolume.
	copied map[Key]string
	// sole holds the PersistentVolumes of volumes that no other one names; nil where several do.
	sole   map[Key]*persistentvolume.Volume
	unread map[volume.Name]bool // perhaps meant by a PersistentVolume that cannot be read
}

func newIndex(view View) index {
	x := index{
		pools:    make(map[volume.PoolName]inventory.Pool, len(view.Pools)),
		ailing:   map[volume.Group]string{},
		volumes:  make(map[Key]*inventory.Volume, len(view.Volumes)),
		named:    make(map[Key]bool, len(view.PersistentVolumes)),
		wanted:   make(map[Key]string, len(view.PersistentVolumes)),
		anywhere: make(map[volume.Name]string, len(view.PersistentVolumes)),
		retained: map[Key]bool{},
		renamed:  map[lastingKey]bool{},
		copied:   map[Key]string{},
		sole:     make(map[Key]*persistentvolume.Volume, len(view.PersistentVolumes)),
		unread:   make(map[volume.Name]bool, len(view.Unreadable)),
	}
	for _, p := range view.Pools {
		group := p.Name.Group()
		_, twice := x.pools[p.Name]
		switch {
		case twice && p.Thin == nil && p.Directories == nil:
			x.ailing[group] = fmt.Sprintf("the node has two volume groups %s; rename one of them with vgrename UUID NAME", group)
		case p.Exported:
			x.ailing[group] = fmt.Sprintf("volume group %s is exported, and LVM changes nothing in it until `vgimport %s`", group, group)
		case p.Missing > 0:
			x.ailing[group] = fmt.Sprintf("LVM cannot find %s of volume group %s; look at `pvs`", volume.Counted(p.Missing, "device", "devices"), group)
		}
		x.pools[p.Name] = p
	}
	for i := range view.Volumes {
		v := &view.Volumes[i]
		// Two of one key are in two groups of one name.
		if other, twice := x.volumes[KeyOf(v)]; !twice || v.UUID < other.UUID {
			x.volumes[KeyOf(v)] = v
		}
	}
	for _, name := range view.Unreadable {
		x.unread[volume.Name(name)] = true
	}
	for i := range view.PersistentVolumes {
		x.add(view, &view.PersistentVolumes[i])
	}
	return x
}

// add notes a PersistentVolume.
func (x *index) add(view View, c *persistentvolume.Volume) {
	key := KeyOfPersistentVolume(c)
	if x.sole[key] = c; x.named[key] {
		x.sole[key] = nil
	}
	x.named[key] = true
	// A snapshot's says Retain so that nothing but its deletion gives it up.
	retained := c.ReclaimPolicy == corev1.PersistentVolumeReclaimRetain && c.Kind != volume.Snapshot
	if retained {
		x.retained[key] = true
	}
	wanted := !view.givenUp(c)
	if wanted {
		keepLeast(x.wanted, key, c.PV)
		keepLeast(x.anywhere, c.Volume, c.PV)
	}
	if (retained || wanted) && c.GroupUUID != "" {
		x.renamed[lastingKey{c.GroupUUID, c.Volume}] = true
	}
	if x.unmadeCopy(view, c) {
		keepLeast(x.copied, Key{c.Group, c.CloneOf}, c.PV)
	}
}

// kept reports whether a PersistentVolume wants a volume or says Retain of it, by the name of its
// group or by the UUID.
func (x *index) kept(v *inventory.Volume) bool {
	_, wanted := x.wanted[KeyOf(v)]
	return wanted || x.retained[KeyOf(v)] || x.renamed[lastingKey{v.GroupUUID, v.Name}]
}

// group returns the volume group of a PersistentVolume, whichever of its pools it is for.
func (x *index) group(c *persistentvolume.Volume) (inventory.Pool, bool) {
	p, there := x.pools[volume.PoolOf(c.Group, "")]
	return p, there
}

// keepLeast keeps the least string for k, so that the order of the lists does not matter.
func keepLeast[K comparable](m map[K]string, k K, s string) {
	if other, there := m[k]; !there || s < other {
		m[k] = s
	}
}
