package eviction

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// requestTTL is how long a request may wait for its node, because it may be outdated after that.
const requestTTL = time.Hour

// A Request is a person's request about a volume that no PersistentVolume names, like `flexlvm volumes retain`
// and `forget` on the node.
type Request struct {
	Time  time.Time
	Group volume.Group
	Name  volume.Name
	FS    string
	To    volume.State // Retained or Unreferenced
}

// AdmitRequest returns the volume that a request means, or why it is refused. The PersistentVolumes of the View must
// be confirmed with the API server.
func AdmitRequest(view View, r Request) (inventory.Volume, error) {
	if age := view.Now.Sub(r.Time); age > requestTTL || age < -requestTTL {
		return inventory.Volume{}, fmt.Errorf("the request has the time %s, but the time here is %s: ask again, or correct the clocks", r.Time.UTC().Format(time.RFC3339), view.Now.UTC().Format(time.RFC3339))
	}
	if r.To != volume.Retained && r.To != volume.Unreferenced {
		return inventory.Volume{}, fmt.Errorf("%s is not a state that can be requested", r.To)
	}
	x := newIndex(view)
	v, err := x.requestedVolume(view, r)
	if err != nil {
		return inventory.Volume{}, err
	}
	if v.State == r.To {
		return *v, nil
	}
	if err := x.checkUnwanted(view, v); err != nil {
		return inventory.Volume{}, err
	}
	return *v, nil
}

// requestedVolume returns the volume that a request means, if it is as the request expects.
func (x *index) requestedVolume(view View, r Request) (*inventory.Volume, error) {
	key := Key{r.Group, r.Name}
	v, there := x.volumes[key]
	switch {
	case view.Cluster == "":
		return nil, errors.New("the UID of this cluster is unknown, so the owner of the volumes is, too")
	case !there:
		return nil, x.whyAbsent(key)
	case v.State == volume.Doomed:
		return nil, errEvicted(key)
	case v.State == "" && v.DirectoryPool != "" && v.DirectoryPool == v.Name:
		return nil, fmt.Errorf("%s is not a volume: %s", key, v.Problem)
	case v.State == "" && v.Layout == volume.Directory:
		return nil, fmt.Errorf("the record of volume %s in directory pool %s is invalid (%s); %s", key, v.Pool(), v.Problem, volume.Remedy(v.Unknown, "correct it"))
	case v.State == "":
		return nil, fmt.Errorf("the tags of volume %s are invalid (%s); %s", key, v.Problem, volume.Remedy(v.Unknown, "correct them with lvchange"))
	case v.Cluster != view.Cluster:
		return nil, fmt.Errorf("volume %s belongs to cluster %q", key, v.Cluster)
	case v.FS != r.FS:
		return nil, fmt.Errorf("volume %s holds the file system %s, but the request names %s", key, v.FS, r.FS)
	case x.groupProblems[r.Group] != "":
		return nil, errors.New(x.groupProblems[r.Group])
	}
	return v, nil
}

// whyAbsent returns why the inventory has no volume of this key: it was evicted, or the inventory may be
// incomplete.
func (x *index) whyAbsent(key Key) error {
	if _, there := x.pools[volume.PoolOf(key.group, "")]; !there {
		return fmt.Errorf("volume %s is not seen: volume group %s is not on this node", key, key.group)
	}
	for _, pool := range slices.Sorted(maps.Keys(x.pools)) {
		if why := x.incomplete(pool); pool.Group() == key.group && why != "" {
			return fmt.Errorf("volume %s is not seen: %s", key, why)
		}
	}
	return errEvicted(key)
}

func errEvicted(key Key) error { return fmt.Errorf("volume %s is gone: it was evicted", key) }

// checkUnwanted returns why a volume is wanted; nil if it is not known to be.
func (x *index) checkUnwanted(view View, v *inventory.Volume) error {
	key := KeyOf(v)
	_, wanted := x.wantedByName[key.name]
	switch {
	case wanted || x.named[key]:
		return fmt.Errorf("PersistentVolume %s names volume %s, so it has an owner: delete its claim, and the volume is released by itself", x.namingPV(view, key), key)
	case x.unreadable[key.name]:
		return fmt.Errorf("a PersistentVolume that cannot be read may name volume %s; its event VolumeNeedsAttention says what to do", key)
	case v.State != volume.Unreferenced && v.State != volume.Retained && v.InUse():
		return fmt.Errorf("volume %s is in use on the node", key)
	case x.cloneSources[key] != "":
		return fmt.Errorf("PersistentVolume %s is to become a copy of volume %s, which is not created yet", x.cloneSources[key], key)
	}
	return nil
}

// namingPV returns a PersistentVolume that names a volume, whether or not it is given up.
func (x *index) namingPV(view View, key Key) string {
	for i := range view.PersistentVolumes {
		if c := &view.PersistentVolumes[i]; KeyOfPersistentVolume(c) == key || c.Volume == key.name {
			return c.PV
		}
	}
	return ""
}
