package overview

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/undelete"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Wanted selects a released volume by its namespace and by Volume or, if that is empty, by the name of the
// claim that it had. Node is optional.
type Wanted struct{ Namespace, Claim, Volume, Node string }

// A Candidate is a released volume and its node.
type Candidate struct {
	Node      string
	GroupUUID string
	Released  flexlvmv1.ReleasedVolume
	Unseen    bool // the node does not see its volume group now
}

// Claim returns the name of the claim that the volume had, or an empty string if it is not known.
func (c Candidate) Claim() string {
	if c.Released.Origin == nil {
		return ""
	}
	return c.Released.Origin.Claim
}

func (c Candidate) String() string {
	claim := cmp.Or(c.Claim(), "unknown")
	unseen := ""
	if c.Unseen {
		unseen = ", in volume group " + string(c.group()) + " that the node does not see now"
	}
	return fmt.Sprintf("--volume %s (node %s, claim %s, %s, %s since %s%s)", c.Released.Name, c.Node, claim,
		bytesOf(c.Released.Size), c.Released.State, c.Released.Released.UTC().Format("2006-01-02 15:04:05Z"), unseen)
}

// Provenance returns when the volume was released, if that is known, and its node. It shows a person which of a
// claim's volumes was found: no report lists a later one whose Node was deleted.
func (c Candidate) Provenance() string {
	if !c.isReleased() || !c.knowsRelease() {
		return "on node " + c.Node
	}
	return fmt.Sprintf("released %s, on node %s", c.Released.Released.UTC().Format("2006-01-02 15:04:05Z"), c.Node)
}

func (c Candidate) group() volume.Group { return volume.PoolName(c.Released.Pool).Group() }

// checkSeen fails if the node does not see the volume now: it can do nothing about it.
func (c Candidate) checkSeen() error {
	if !c.Unseen {
		return nil
	}
	return fmt.Errorf("node %s does not see volume group %s now, which has this volume:\n  %s\nBring the disks of the group back (`flexlvm doctor --group %s` on the node shows whether LVM's devices file hides them), and try again; if the group is gone for good, so is the volume (docs/undelete.md: a volume group that is not seen)",
		c.Node, c.group(), c, c.group())
}

// Find returns the only released volume that matches. If several or none match, the error lists those in the
// namespace, newest first. By its claim's name a volume is only found if no newer one can exist that no node
// lists, or lists without its claim.
func Find(storages []flexlvmv1.NodeStorage, w Wanted) (Candidate, error) {
	if w.Claim == "" && w.Volume == "" { // it would match the volumes whose claim is not known
		return Candidate{}, errors.New("neither a claim nor a volume is named")
	}
	var found, others []Candidate
	notListed := int32(0)
	for i := range storages {
		s := &storages[i]
		if w.Node != "" && s.Name != w.Node {
			continue
		}
		more, _ := unlisted(s)
		notListed += more
		for _, r := range s.Status.Released {
			c := Candidate{Node: s.Name, GroupUUID: groupUUID(s, r.Pool), Released: r, Unseen: unseen(s, r.Pool)}
			switch {
			case r.Namespace != w.Namespace:
			case w.Volume != "" && r.Name != w.Volume, w.Volume == "" && c.Claim() != w.Claim, r.FilesystemUUID == "":
				others = append(others, c)
			default:
				found = append(found, c)
			}
		}
	}
	found, others = withoutMoved(found, others)
	if len(found) == 1 {
		if err := found[0].checkSeen(); err != nil {
			return Candidate{}, err
		}
		if err := unknownSince(others, w, found[0]); err != nil {
			return Candidate{}, err
		}
		return found[0], unlistedSince(storages, w, found[0])
	}
	what := fmt.Sprintf("of claim %s/%s", w.Namespace, w.Claim)
	if w.Volume != "" {
		what = fmt.Sprintf("%s of namespace %s", w.Volume, w.Namespace)
	}
	if len(found) > 1 {
		return Candidate{}, fmt.Errorf("there are %d released volumes %s; select one with --volume or --node:%s", len(found), what, listed(found))
	}
	return Candidate{}, notReportedErr(what, others, notListed)
}

// notReportedErr returns the error for a volume that no node reports, with the others of its namespace.
func notReportedErr(what string, others []Candidate, notListed int32) error {
	err := fmt.Errorf("no node reports a released volume %s: it is in another namespace (-n), it was evicted, its PersistentVolume still exists (kubectl get pv), or it is not among the volumes that the nodes list", what)
	if len(others) > 0 {
		err = fmt.Errorf("%w. The nodes report these released volumes of the namespace:%s", err, listed(others))
	}
	if notListed > 0 {
		err = fmt.Errorf("%w\n%d more released volumes are not listed; flexlvm volumes list on their node shows them", err, notListed)
	}
	return err
}

// withoutMoved returns the found volumes, and the others, without those that are unseen on one node and seen on another,
// because their disks were moved there.
func withoutMoved(found, others []Candidate) (_, _ []Candidate) {
	all := slices.Concat(found, others)
	moved := func(c Candidate) bool { return slices.ContainsFunc(all, c.movedTo) }
	return slices.DeleteFunc(found, moved), slices.DeleteFunc(others, moved)
}

// movedTo reports whether other is c, which its node does not see any more, on another node: what LVM and the file system
// say of themselves is the same. If the nodes know different claims, or c is released and the other volume is not, or the
// other was last used or released earlier, as far as that is known, it is another one with a copy of the file system.
func (c Candidate) movedTo(other Candidate) bool {
	was, is := &c.Released, &other.Released
	same := is.FilesystemUUID == was.FilesystemUUID && is.Name == was.Name && is.Created.Equal(&was.Created)
	claim := c.Claim() == other.Claim() || c.Claim() == "" || other.Claim() == ""
	released := other.isReleased() || !c.isReleased()
	return c.Unseen && !other.Unseen && same && claim && released && (!other.knowsRelease() || !is.Released.Before(&was.Released))
}

// isReleased reports whether the volume is released, and no orphan.
func (c Candidate) isReleased() bool {
	return c.Released.State == string(volume.Unreferenced) || c.Released.State == string(volume.Retained)
}

// knowsRelease reports whether the node has a record of the release. Without one, as for a volume whose disks were moved to
// the node, it reports the time of creation, which it may round up by a second.
func (c Candidate) knowsRelease() bool {
	return c.Released.Released.After(c.Released.Created.Add(time.Second))
}

// FindAny is Find, but includes the orphans that the nodes report if the volume is named. Several nodes may
// have a volume of the same name, as with datasets; then none of them is chosen.
func FindAny(storages []flexlvmv1.NodeStorage, w Wanted) (Candidate, error) {
	if w.Volume == "" {
		return Find(storages, w)
	}
	all := slices.Clone(storages)
	for i := range all {
		status := &all[i].Status
		released := slices.Clone(status.Released)
		for _, o := range orphansOf(&all[i]) {
			status.ReleasedCount++
			released = append(released, flexlvmv1.ReleasedVolume{
				Pool: o.Pool, Name: o.Name, Kind: o.Kind, State: o.State, Namespace: o.Namespace, Size: o.Size, FilesystemUUID: o.FilesystemUUID, FSType: o.FSType, Encrypted: o.Encrypted,
				Released: o.LastUsed, Created: o.Created,
			})
		}
		status.Released = released
	}
	return Find(all, w)
}

func listed(all []Candidate) string {
	slices.SortStableFunc(all, func(a, b Candidate) int { return b.Released.Released.Compare(a.Released.Released.Time) })
	var out strings.Builder
	for _, c := range all[:min(len(all), 20)] {
		out.WriteString("\n  " + c.String())
	}
	return out.String()
}

func groupUUID(s *flexlvmv1.NodeStorage, pool string) string {
	group := string(volume.PoolName(pool).Group())
	for _, p := range s.Status.Pools {
		if p.Name == group {
			return p.UUID
		}
	}
	return ""
}

// Inventory returns the volume as the node's inventory describes it.
func (c Candidate) Inventory(cluster string) inventory.Volume {
	v := released(c.Released)
	v.GroupUUID, v.Cluster = c.GroupUUID, cluster
	v.Wipe = cmp.Or(volume.Wipe(c.Released.Wipe), volume.WipeNone)
	return v
}

// Request returns what is known of the former PersistentVolume. The caller sets the policy and the host name.
func (c Candidate) Request() (undelete.Request, error) {
	r := undelete.Request{Node: c.Node}
	o := c.Released.Origin
	if o == nil {
		return r, nil
	}
	r.Claim, r.Class, r.Inodes, r.Door, r.OnNodeLoss = o.Claim, o.StorageClassName, o.Inodes, pv.Door(o.Door), volume.OnNodeLoss(o.OnNodeLoss)
	var err error
	if r.Trim, err = volume.ParseTrim(pv.AnnotationTrim, o.Trim); err != nil {
		return r, err
	}
	if o.OverprovisionRatio != "" {
		if r.Ratio, err = volume.ParseRatio(pv.AnnotationRatio, o.OverprovisionRatio); err != nil {
			return r, err
		}
	}
	if o.IOLimits != "" {
		if r.IOLimits, err = volume.ParseIOLimits(pv.AnnotationIOLimits, o.IOLimits); err != nil {
			return r, err
		}
	}
	r.MountOptions, err = volume.ParseMountOptions("mountOptions", o.MountOptions)
	return r, err
}
