package eviction

import (
	"fmt"
	"slices"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// An Undelete is the request of a PersistentVolume to bring its volume back.
type Undelete struct {
	PersistentVolume persistentvolume.Volume
	State            volume.State // of the volume
	UUID             string       // LVM's UUID of the volume
	// Why is why it cannot be brought back; empty if it can. If Evicted, it never can.
	Why     string
	Evicted bool
}

// Undeletes returns the requests of PersistentVolumes to bring their volumes back, in order of their names. A
// request for a ready volume has been carried out. Nothing is brought back for a PersistentVolume that is given
// up or names no file system.
func Undeletes(view View) []Undelete {
	if view.Cluster == "" {
		return nil
	}
	x := newIndex(view)
	var out []Undelete
	for i := range view.PersistentVolumes {
		c := &view.PersistentVolumes[i]
		if !c.Undelete || !c.Usable() || c.Deleting || c.Cluster != view.Cluster || c.FS == "" {
			continue
		}
		u := Undelete{PersistentVolume: *c}
		u.Why, u.Evicted = x.whyNotUndeleted(c)
		if v, there := x.volumes[KeyOfPersistentVolume(c)]; there {
			u.State, u.UUID = v.State, v.UUID
		}
		out = append(out, u)
	}
	slices.SortFunc(out, func(a, b Undelete) int { return comparePV(a.PersistentVolume, b.PersistentVolume) })
	return out
}

// whyNotUndeleted returns why the volume of a PersistentVolume cannot be brought back, and whether it was evicted.
func (x *index) whyNotUndeleted(c *persistentvolume.Volume) (why string, evicted bool) {
	key := KeyOfPersistentVolume(c)
	pool, there := x.group(c)
	switch {
	case x.renamed(c) != "":
		return x.renamed(c), false
	case !there:
		return fmt.Sprintf("volume group %s is not on this node", c.Group), false
	case !c.InGroup(pool.UUID):
		return fmt.Sprintf("volume group %s on this node has the UUID %s, and the volume was in the one with UUID %s", c.Group, pool.UUID, c.GroupUUID), false
	case x.groupProblems[c.Group] != "":
		return x.groupProblems[c.Group], false
	case x.solePV[key] == nil:
		return fmt.Sprintf("another PersistentVolume names volume %s too", key), false
	case x.whyUnlisted(c.Pool()) != "":
		return x.whyUnlisted(c.Pool()), false
	}
	v, there := x.volumes[key]
	switch {
	case !there && x.incomplete(c.Pool()) != "":
		return x.incomplete(c.Pool()), false
	case !there || v.State == volume.Doomed:
		return fmt.Sprintf("volume %s was evicted before it could be brought back: its data is lost, and no empty volume replaces it", key), true
	}
	return whyOtherVolume(v, c), false
}

// whyOtherVolume returns why an existing volume is not the one that a PersistentVolume asks to bring back; empty if
// it is.
func whyOtherVolume(v *inventory.Volume, c *persistentvolume.Volume) string {
	key := KeyOf(v)
	switch {
	case v.State == "":
		return fmt.Sprintf("the tags of volume %s are invalid (%s)", key, v.Problem)
	case v.FS != c.FS:
		return fmt.Sprintf("volume %s holds the file system %s, but %s is to be brought back", key, v.FS, c.FS)
	case v.Cluster != c.Cluster:
		return fmt.Sprintf("volume %s belongs to cluster %q", key, v.Cluster)
	case v.Kind != c.Kind:
		return fmt.Sprintf("volume %s is of kind %s, and PersistentVolume %s says %s", key, v.Kind, c.PV, c.Kind)
	case v.Namespace != c.ClaimNamespace:
		return fmt.Sprintf("volume %s belongs to namespace %q, and PersistentVolume %s is for %s", key, v.Namespace, c.PV, c.User())
	case v.State == volume.Creating, v.CloneOfFS != "", v.PartlyZeroed:
		return fmt.Sprintf("volume %s was never finished, so there is nothing to bring back", key)
	}
	return ""
}
