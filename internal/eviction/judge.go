package eviction

import (
	"fmt"
	"slices"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/undelete"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// An Action is what to do about a PersistentVolume.
type Action string

const (
	// ActionRelease: change the volume's state to Verdict.To, then delete the PersistentVolume unless it is
	// deleted already (preconditions UID and resourceVersion), and remove flexlvm's finalizer.
	ActionRelease Action = "release"
	// ActionWait: do nothing yet, and report nothing.
	ActionWait Action = "wait"
	// ActionReport: do nothing, and report it to a person.
	ActionReport Action = "report"
)

// A Verdict is what the API has positively said about a PersistentVolume.
type Verdict struct {
	PersistentVolume persistentvolume.Volume
	Action           Action
	To               volume.State // Unreferenced or Retained; with ActionRelease only
	Why              string       // in words, for events and logs
}

// Judge returns the verdicts on the PersistentVolumes, in order of their names. A PersistentVolume that needs
// neither an action nor a report has none.
func Judge(view View) []Verdict {
	if view.Cluster == "" {
		return nil // it is unknown whose volumes these are; Plan reports that
	}
	x := newIndex(view)
	var out []Verdict
	for i := range view.PersistentVolumes {
		c := &view.PersistentVolumes[i]
		v := Verdict{PersistentVolume: *c, Action: ActionReport}
		switch {
		case !view.givenUp(c):
			v.Why = x.pvProblem(view, c)
		case x.nothingLeft(c):
		case x.obstacle(c) != "":
			v.Why = fmt.Sprintf("%s, but its volume stays as it is: %s", c.Evidence(), x.obstacle(c))
		case x.keptAfterRestore(view, c) != "":
			v.Why = fmt.Sprintf("%s, but its volume stays as it is: %s", c.Evidence(), x.keptAfterRestore(view, c))
		case x.beingCloned(c) != "":
			v.Action = ActionWait
			v.Why = fmt.Sprintf("%s, but its volume stays as it is: PersistentVolume %s is to become a copy of it, which is not created yet; it is released when that is done, or when that PersistentVolume is deleted", c.Evidence(), x.beingCloned(c))
		default:
			v.Action = ActionRelease
			v.To, v.Why = x.release(c)
		}
		if v.Why != "" {
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(a, b Verdict) int { return comparePV(a.PersistentVolume, b.PersistentVolume) })
	return out
}

// givenUp reports whether the API states positively that the volume of a PersistentVolume is not wanted any
// more. Anything else protects the volume.
func (view View) givenUp(c *persistentvolume.Volume) bool {
	return view.Cluster != "" && c.Cluster == view.Cluster && c.BeingRemoved()
}

// nothingLeft reports whether nothing is left to do about a PersistentVolume that is given up: only another
// controller's finalizer keeps the object, perhaps for long. A policy that becomes Retain meanwhile still
// applies.
func (x *index) nothingLeft(c *persistentvolume.Volume) bool {
	if !c.Deleting || c.HasFinalizer {
		return false
	}
	v, there := x.volumes[KeyOfPersistentVolume(c)]
	switch {
	case !there:
		return true
	case v.State == volume.Unreferenced:
		return !x.policyRetain[KeyOfPersistentVolume(c)]
	}
	return v.State != volume.Creating && v.State != volume.Ready
}

// obstacle returns why the volume of a PersistentVolume that is given up cannot change its state; empty if it
// can. A volume that does not exist is no obstacle: releasing it prevents its creation.
func (x *index) obstacle(c *persistentvolume.Volume) string {
	if by, wanted := x.wanted[KeyOfPersistentVolume(c)]; wanted {
		return fmt.Sprintf("PersistentVolume %s still names it; delete that one too if nobody needs it", by)
	}
	if x.unreadable[c.Volume] {
		return "another PersistentVolume, which cannot be read, may name it or be a copy of it that is not created yet; its event VolumeNeedsAttention says what to do"
	}
	if why := x.renamed(c); why != "" {
		return why
	}
	if _, there := x.group(c); !there {
		return fmt.Sprintf("LVM does not see volume group %s on this node, so its state is unknown; %s; only if they are lost permanently, remove the finalizer %s", c.Group, missingGroupAdvice(c.Group), pv.Finalizer)
	}
	if problem := x.groupProblems[c.Group]; problem != "" {
		return problem
	}
	if why := x.whyUnlisted(c.Pool()); why != "" {
		return why
	}
	v, there := x.volumes[KeyOfPersistentVolume(c)]
	switch {
	case !there:
		return ""
	case v.State == "" && v.Layout == volume.Directory:
		return fmt.Sprintf("the record of %s in directory pool %s is invalid (%s); %s", KeyOfPersistentVolume(c), c.Pool(), v.Problem, volume.Remedy(v.Unknown, "correct it"))
	case v.State == "":
		return fmt.Sprintf("the tags of %s are invalid (%s); %s", KeyOfPersistentVolume(c), v.Problem, volume.Remedy(v.Unknown, "correct them with lvchange"))
	case v.Cluster != c.Cluster:
		return fmt.Sprintf("%s belongs to cluster %q, not to %q; remove the finalizer %s once nobody needs the PersistentVolume", KeyOfPersistentVolume(c), v.Cluster, c.Cluster, pv.Finalizer)
	case c.FS != "" && v.FS != c.FS:
		return fmt.Sprintf("it was created for the file system %s, but %s holds another (%s); remove the finalizer %s once nobody needs the PersistentVolume", c.FS, KeyOfPersistentVolume(c), v.FS, pv.Finalizer)
	case !c.InGroup(v.GroupUUID):
		return fmt.Sprintf("it was created in volume group %s with UUID %s, but %s is in another of that name (%s); remove the finalizer %s once nobody needs the PersistentVolume", c.Group, c.GroupUUID, KeyOfPersistentVolume(c), v.GroupUUID, pv.Finalizer)
	case v.DirectoryPool != c.Shape.DirectoryPool: // the engine searches only that pool
		return fmt.Sprintf("it was created in %s %s, but %s is in %s %s; rename the pool back (lvrename), or remove the finalizer %s once nobody needs the PersistentVolume",
			c.Pool().Noun(), c.Pool(), KeyOfPersistentVolume(c), v.Pool().Noun(), v.Pool(), pv.Finalizer)
	}
	return ""
}

// keptAfterRestore returns why the volume of a released claim is kept after the API server went back in time; empty if
// it is not. A restored API server does not know a claim to which the volume was given back since the backup.
// Replicas are loaded again, and the deletion of a snapshot is never undone.
func (x *index) keptAfterRestore(view View, c *persistentvolume.Volume) string {
	v, there := x.volumes[KeyOfPersistentVolume(c)]
	if view.WentBack == "" || c.Kind != volume.Claim || !there || v.State != volume.Ready && v.State != volume.Creating {
		return ""
	}
	return fmt.Sprintf("%s, and may not know who has used the volume since; set the reclaim policy to Retain if it is needed (`kubectl patch pv %s -p '{\"spec\":{\"persistentVolumeReclaimPolicy\":\"Retain\"}}'`), and restart the node daemon (delete its pod) once that is done for all PersistentVolumes of this node", view.restored(), c.PV)
}

// whyUnlisted returns why the volumes in a pool cannot be listed; empty if they can. LVM lists those of groups and
// thin pools; those of a directory pool are files in it.
func (x *index) whyUnlisted(name volume.PoolName) string {
	pool, there := x.pools[name]
	switch {
	case !name.Directory():
		return ""
	case !there:
		return fmt.Sprintf("directory pool %s is not on this node, or does not carry flexlvm's tags, so its state is unknown; correct that, or remove the finalizer %s if the pool is lost permanently", name, pv.Finalizer)
	case pool.VolumesUnknown():
		return fmt.Sprintf("directory pool %s cannot be read, so its state is unknown: %s", name, pool.Directories.Unfit)
	}
	return ""
}

// release returns the state that the volume of a released PersistentVolume gets, and why. A volume that already
// is in such a state, perhaps by a person's request, stays in it. But Retain applies even if the volume became
// unreferenced before the policy was Retain: it is unknown whether a person wanted that, and a person can give
// the volume up again.
func (x *index) release(c *persistentvolume.Volume) (volume.State, string) {
	retain := x.policyRetain[KeyOfPersistentVolume(c)]
	v, there := x.volumes[KeyOfPersistentVolume(c)]
	if there && (v.State == volume.Retained || v.State == volume.Unreferenced && !retain) {
		return v.State, fmt.Sprintf("%s; volume %s is %s already", c.Evidence(), KeyOfPersistentVolume(c), v.State)
	}
	if retain {
		return volume.Retained, fmt.Sprintf("%s; the reclaim policy is Retain, so volume %s is kept until someone gives it up (`flexlvm volumes forget %s`)", c.Evidence(), KeyOfPersistentVolume(c), c.Volume)
	}
	if c.Kind == volume.Snapshot {
		return volume.Unreferenced, fmt.Sprintf("%s; it represents a snapshot, so volume %s is removed", c.Evidence(), KeyOfPersistentVolume(c))
	}
	return volume.Unreferenced, fmt.Sprintf("%s; its reclaim policy is Delete, so volume %s may be evicted", c.Evidence(), KeyOfPersistentVolume(c))
}

// pvProblem returns a problem of a PersistentVolume that is not given up; empty if there is none.
func (x *index) pvProblem(view View, c *persistentvolume.Volume) string {
	switch {
	case c.Cluster == view.Cluster:
	case c.Cluster == "" && c.BeingRemoved():
		return fmt.Sprintf("%s, but its volume is left alone: the option %s is missing, so it may be another cluster's; check it on the node, then remove the finalizer %s", c.Evidence(), volume.OptionCluster, pv.Finalizer)
	case c.Cluster != "":
		return fmt.Sprintf("PersistentVolume %s records cluster %q, but this cluster is %q; its volume is left alone: restore it under this cluster's UID, or remove the finalizer %s once nobody needs it", c.PV, c.Cluster, view.Cluster, pv.Finalizer)
	}
	if why := x.renamed(c); why != "" {
		return fmt.Sprintf("PersistentVolume %s needs volume group %s, which was renamed: %s", c.PV, c.Group, why)
	}
	if !c.Usable() {
		return ""
	}
	pool, there := x.group(c)
	_, hasPool := x.pools[c.Pool()]
	switch {
	case !there:
		return fmt.Sprintf("PersistentVolume %s needs volume group %s, which LVM does not see on this node; %s%s; only if they are lost permanently, delete %s", c.PV, c.Group, missingGroupAdvice(c.Group), orCreate(c), claimant(c))
	case !c.InGroup(pool.UUID) && x.groupProblems[c.Group] == "":
		return fmt.Sprintf("PersistentVolume %s was created for volume group %s with UUID %s, but the one on this node has %s; bring the disks of the other one back; only if they are lost permanently, such as after a replacement, delete %s", c.PV, c.Group, c.GroupUUID, pool.UUID, claimant(c))
	case !hasPool:
		return fmt.Sprintf("PersistentVolume %s needs %s %s, which is not on this node or does not carry flexlvm's tags; see `lvs -o +lv_tags %s`, and tag it; only if it is lost permanently, delete %s", c.PV, c.Pool().Noun(), c.Pool(), c.Group, claimant(c))
	}
	if c.Undelete {
		return "" // the daemon brings the volume back, or reports why it cannot
	}
	return x.unmountable(view, c)
}

// claimant returns what to delete to give up a PersistentVolume: its claim, its VolumeSnapshot, or its LocalVolume as
// long as there is no claim. The snapshot controller refuses to delete a single VolumeSnapshot of a group.
func claimant(c *persistentvolume.Volume) string {
	switch {
	case c.SnapshotGroup != "":
		return "its VolumeGroupSnapshot, with all its other snapshots (first restore those that are needed)"
	case c.Kind == volume.Snapshot:
		return "its VolumeSnapshot"
	case IsUnboundLocalVolume(c):
		return "its LocalVolume"
	}
	return c.User()
}

// missingGroupAdvice returns what to do about a volume group that LVM does not see. Its data may be intact: its disks
// may be late, or hidden by LVM's devices file.
func missingGroupAdvice(group volume.Group) string {
	return fmt.Sprintf("bring its disks back (`flexlvm doctor --group %s` shows whether LVM's devices file hides them; then run `vgimportdevices %s`)", group, group)
}

// orCreate returns what else to do about a volume group that LVM does not see, if the group may never have existed.
// It did exist if the PersistentVolume records its UUID, as those that the provisioner creates do.
func orCreate(c *persistentvolume.Volume) string {
	if c.GroupUUID != "" {
		return ""
	}
	return ", or create the group if it never existed (`flexlvm vg create`)"
}

// unmountable returns why no pod can mount the volume of a PersistentVolume whose pool exists, or why its snapshot
// cannot be restored; empty if that is possible.
func (x *index) unmountable(view View, c *persistentvolume.Volume) string {
	key := KeyOfPersistentVolume(c)
	v, there := x.volumes[key]
	givenUp := there && (v.State == volume.Unreferenced || v.State == volume.Retained)
	switch {
	case givenUp && c.Kind == volume.Snapshot:
		return fmt.Sprintf("PersistentVolume %s is %s and its volume %s is %s, and a snapshot cannot be undeleted; restore it to a claim if its content is needed, then delete %s", c.PV, c.Phase, key, v.State, claimant(c))
	case givenUp:
		return fmt.Sprintf("PersistentVolume %s is %s and its volume %s is %s, so no pod can mount it; %s", c.PV, c.Phase, key, v.State, readyAdvice(v))
	case !there && view.Lost[key] == LossProved && x.groupProblems[c.Group] == "" && x.incomplete(c.Pool()) == "":
		return fmt.Sprintf("PersistentVolume %s is %s and its volume %s, %s, is gone, so %s", c.PV, c.Phase, key, existenceEvidence(c), lostVolumeAdvice(c))
	}
	return ""
}

// readyAdvice returns how a volume becomes ready again whose PersistentVolume is still there, or why it cannot.
func readyAdvice(v *inventory.Volume) string {
	if err := undelete.CheckComplete(*v); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("bring it back with `flexlvm volumes undelete %s --no-manifests` (the PersistentVolume is there already)", v.Name)
}

// incomplete returns why the inventory may lack volumes of a pool; empty if it has all. Those of an unfit
// directory pool may be in its lost+found.
func (x *index) incomplete(name volume.PoolName) string {
	if why := x.whyUnlisted(name); why != "" {
		return why
	}
	if d := x.pools[name].Directories; d != nil && d.Unfit != "" {
		return fmt.Sprintf("directory pool %s may have volumes that cannot be seen: %s", name, d.Unfit)
	}
	return ""
}

// existenceEvidence returns the evidence that the volume of a PersistentVolume existed.
func existenceEvidence(c *persistentvolume.Volume) string {
	switch {
	case c.Kind == volume.Snapshot:
		return "which was taken according to the PersistentVolume"
	case c.Kind == volume.Dataset && c.Replica.Complete:
		return "which is complete according to the PersistentVolume"
	}
	return "which was here as far as this node's records show"
}

// lostVolumeAdvice returns the consequence of a volume that is gone, and what to do about its PersistentVolume.
func lostVolumeAdvice(c *persistentvolume.Volume) string {
	switch {
	case c.Kind == volume.Snapshot:
		return fmt.Sprintf("the snapshot cannot be restored; delete %s", claimant(c))
	case c.Kind == volume.Dataset:
		return fmt.Sprintf("no pod can mount it; delete %s, and the replica is loaded again", c.User())
	case c.Pool().Directory():
		return fmt.Sprintf("no pod can mount it; delete %s and restore the data from a backup", c.User())
	}
	return fmt.Sprintf("no pod can mount it; delete %s and restore the data from a backup; `grep description /etc/lvm/archive/%s_*` on the node may show what removed it, but do not restore any of these archives, because volumes created since would be lost", c.User(), c.Group)
}
