package eviction

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A View is all input of a round's decisions. The caller ensures that it is complete: if any list failed or is
// stale, there is no View, and nothing is decided.
type View struct {
	Now               time.Time
	Cluster           string // UID of the kube-system namespace
	Pools             []inventory.Pool
	Volumes           []inventory.Volume
	PersistentVolumes []persistentvolume.Volume
	// Unreadable holds persistentvolume.NamesOf of every PersistentVolume of this node that
	// persistentvolume.Parse cannot read. Volumes of these names count as wanted, in any group.
	Unreadable []string
	// KeptElsewhere holds the UUIDs of volumes that are kept by PersistentVolumes outside the list above, whose
	// labels name another node or none.
	KeptElsewhere map[string]bool
	// KeptUnchecked holds the UUIDs of unreferenced volumes for which the API server has not confirmed yet whether a
	// PersistentVolume outside the list above keeps them. They may be evicted, because the API server is asked just
	// before the removal, but their room is not on offer.
	KeptUnchecked map[string]bool
	// OrphansEvicted is how many orphans were evicted within the last OrphanWindow, as far as the caller knows.
	// They count against OrphanShare: a limit per plan would only spread the loss over several rounds.
	OrphansEvicted int
	// Users are the pods of this node that have not ended, by the claims that they name.
	Users map[ClaimKey]string
	// PodsKnown: Users is complete. Otherwise any volume may be in use.
	PodsKnown bool
	// ReplicasInUse holds the UIDs of the PersistentVolumes of replicas whose eviction was withdrawn a short time ago
	// because a pod uses them. Users may lack that pod: it may be of another namespace, or not be bound to this node
	// yet.
	ReplicasInUse map[types.UID]bool
	// Removing holds the IDs of volumes that are being removed, whatever their State is in the inventory.
	// Their room counts as about to be free, so that no other volume is evicted instead.
	Removing map[string]bool
	// StartsUntil is until when evictions that can wait are postponed; see Starts.
	StartsUntil time.Time
	// WentBack holds the resourceVersions by which the API server has gone back in time, as if it had been
	// restored from a backup; empty if it has not. It may lack PersistentVolumes that were created since that
	// backup, and claims to which volumes were given since.
	WentBack string
	// Lost holds the volumes of PersistentVolumes that the node has had, or may have had, and that are gone, and
	// LostSources. No room is made for them, because a volume that the node has had is never created again, nor for a
	// copy of one, which would have nothing to copy.
	Lost map[Key]Loss
}

// A Loss is how certain it is that a volume is lost.
type Loss int

const (
	// NotLost: the node has the volume, or has never had it.
	NotLost Loss = iota
	// LossUnproved: the node's records cannot be read, so it may have had the volume.
	LossUnproved
	// LossProved: the node's records prove that it has had the volume, or the replica was complete, or the snapshot was
	// taken, or no PersistentVolume is left that wants the source.
	LossProved
)

// staysGone reports whether the volume of a PersistentVolume is not created if it does not exist: it was brought
// back before (FS), is a taken snapshot, was on this node before, or was to be a copy of a volume that is gone.
func (view View) staysGone(c *persistentvolume.Volume) bool {
	lost, sourceLost := view.Lost[KeyOfPersistentVolume(c)], view.Lost[Key{c.Group, c.CloneOf}]
	return c.FS != "" || c.Taken || lost != NotLost || sourceLost != NotLost
}

// isBeingRemoved reports whether a volume is being removed but was not doomed yet in the inventory.
func (view View) isBeingRemoved(v *inventory.Volume) bool {
	return v.State == volume.Unreferenced && view.Removing[v.ID()]
}

// aboutToBeFree reports whether the room of a volume is about to be free. That of a doomed volume is not if its
// removal has failed and is not under way again, or if it is another cluster's: then nobody knows when it will be.
func (view View) aboutToBeFree(v *inventory.Volume) bool {
	if v.State == volume.Doomed {
		return v.Cluster == view.Cluster && (v.Problem == "" || view.Removing[v.ID()])
	}
	return view.isBeingRemoved(v)
}

// restored describes WentBack, which is not empty, for messages.
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

// A groupUUIDKey names a volume by the UUID of its group, which does not change when the group is renamed.
type groupUUIDKey struct {
	groupUUID string
	name      volume.Name
}

// An index holds the objects of a View by name.
type index struct {
	pools         map[volume.PoolName]inventory.Pool
	groupNames    map[string]string       // of volume groups, by their UUIDs
	groupProblems map[volume.Group]string // why nothing in the group can be changed
	volumes       map[Key]*inventory.Volume
	named         map[Key]bool // by any PersistentVolume, including one that is given up
	// namedByGroupUUID is like named, by the UUID of the group if the PersistentVolume records it.
	namedByGroupUUID map[groupUUIDKey]bool
	wanted           map[Key]string // the name of a PersistentVolume that wants the volume, i.e. is not given up
	// policyRetain are the volumes whose PersistentVolume has the policy Retain, given up or not. While that
	// exists, its volume is not removed.
	policyRetain map[Key]bool
	// keptByGroupUUID are the volumes of wanted and policyRetain by the UUID of their group, if known: a PersistentVolume
	// keeps the group's former name.
	keptByGroupUUID map[groupUUIDKey]bool
	// wantedByName is like wanted, whatever the group, because a group may have been renamed on the node.
	wantedByName map[volume.Name]string
	// cloneSources holds the sources of copies that are not created yet, with the copy's PersistentVolume.
	cloneSources map[Key]string
	// solePV is the only PersistentVolume that names a volume; nil if there are several.
	solePV     map[Key]*persistentvolume.Volume
	unreadable map[volume.Name]bool // names that an unreadable PersistentVolume may mean
}

func newIndex(view View) index {
	x := index{
		pools:            make(map[volume.PoolName]inventory.Pool, len(view.Pools)),
		groupNames:       map[string]string{},
		groupProblems:    map[volume.Group]string{},
		volumes:          make(map[Key]*inventory.Volume, len(view.Volumes)),
		named:            make(map[Key]bool, len(view.PersistentVolumes)),
		namedByGroupUUID: make(map[groupUUIDKey]bool, len(view.PersistentVolumes)),
		wanted:           make(map[Key]string, len(view.PersistentVolumes)),
		wantedByName:     make(map[volume.Name]string, len(view.PersistentVolumes)),
		policyRetain:     map[Key]bool{},
		keptByGroupUUID:  map[groupUUIDKey]bool{},
		cloneSources:     map[Key]string{},
		solePV:           make(map[Key]*persistentvolume.Volume, len(view.PersistentVolumes)),
		unreadable:       make(map[volume.Name]bool, len(view.Unreadable)),
	}
	for _, p := range view.Pools {
		group := p.Name.Group()
		_, duplicate := x.pools[p.Name]
		switch {
		case duplicate && p.Thin == nil && p.Directories == nil:
			x.groupProblems[group] = fmt.Sprintf("the node has two volume groups %s; rename one of them with vgrename UUID NAME", group)
		case p.Exported:
			x.groupProblems[group] = fmt.Sprintf("volume group %s is exported, and LVM changes nothing in it until `vgimport %s`", group, group)
		case p.Missing > 0:
			x.groupProblems[group] = fmt.Sprintf("LVM cannot find %s of volume group %s; see `pvs`", volume.Pluralize(p.Missing, "device", "devices"), group)
		}
		x.pools[p.Name] = p
		if p.Thin == nil && p.Directories == nil {
			setMin(x.groupNames, p.UUID, string(group))
		}
	}
	for i := range view.Volumes {
		v := &view.Volumes[i]
		// Two volumes with one key are in two groups of the same name.
		if other, duplicate := x.volumes[KeyOf(v)]; !duplicate || v.UUID < other.UUID {
			x.volumes[KeyOf(v)] = v
		}
	}
	for _, name := range view.Unreadable {
		x.unreadable[volume.Name(name)] = true
	}
	for i := range view.PersistentVolumes {
		x.add(view, &view.PersistentVolumes[i])
	}
	return x
}

// add indexes a PersistentVolume.
func (x *index) add(view View, c *persistentvolume.Volume) {
	key := KeyOfPersistentVolume(c)
	if x.solePV[key] = c; x.named[key] {
		x.solePV[key] = nil
	}
	x.named[key] = true
	if c.GroupUUID != "" {
		x.namedByGroupUUID[groupUUIDKey{c.GroupUUID, c.Volume}] = true
	}
	// A snapshot's policy is Retain so that only its deletion gives it up.
	retained := c.ReclaimPolicy == corev1.PersistentVolumeReclaimRetain && c.Kind != volume.Snapshot
	if retained {
		x.policyRetain[key] = true
	}
	wanted := !view.givenUp(c)
	if wanted {
		setMin(x.wanted, key, c.PV)
		setMin(x.wantedByName, c.Volume, c.PV)
	}
	if (retained || wanted) && c.GroupUUID != "" {
		x.keptByGroupUUID[groupUUIDKey{c.GroupUUID, c.Volume}] = true
	}
	if x.unfinishedClone(view, c) {
		setMin(x.cloneSources, Key{c.Group, c.CloneOf}, c.PV)
	}
}

// kept reports whether a PersistentVolume wants a volume or has the policy Retain for it, by the group's name
// or UUID.
func (x *index) kept(v *inventory.Volume) bool {
	_, wanted := x.wanted[KeyOf(v)]
	return wanted || x.policyRetain[KeyOf(v)] || x.keptByGroupUUID[groupUUIDKey{v.GroupUUID, v.Name}]
}

// group returns the volume group of a PersistentVolume, whichever pool of the group it is for.
func (x *index) group(c *persistentvolume.Volume) (inventory.Pool, bool) {
	p, there := x.pools[volume.PoolOf(c.Group, "")]
	return p, there
}

// renamed returns what to do about the volume group of a PersistentVolume if the node has it under another name; empty
// if it does not. Its volumes are intact then, although the inventory has none of them under the former name.
func (x *index) renamed(c *persistentvolume.Volume) string {
	if pool, there := x.group(c); c.GroupUUID == "" || there && c.InGroup(pool.UUID) {
		return ""
	}
	if now, there := x.groupNames[c.GroupUUID]; there && now != string(c.Group) {
		return volume.RenamedGroup(c.GroupUUID, volume.Group(now), c.Group)
	}
	return ""
}

// comparePV orders PersistentVolumes by their names, and by their UIDs if several have the same.
func comparePV(a, b persistentvolume.Volume) int {
	return cmp.Or(cmp.Compare(a.PV, b.PV), cmp.Compare(a.UID, b.UID))
}

// setMin stores s if it is the smallest string for k, so that the order of the lists does not matter.
func setMin[K comparable](m map[K]string, k K, s string) {
	if other, there := m[k]; !there || s < other {
		m[k] = s
	}
}
