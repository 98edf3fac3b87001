package gc

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// unmadeCopy tells whether a claim is one of a volume that is to begin as a copy of
// another and is not ready yet. Until it is, what it is a copy of has to stay: half a
// copy is taken anew. One that can never be made, because nobody wants it any more or
// it is not of this cluster or group, keeps nothing.
func (x *index) unmadeCopy(view View, c *Claim) bool {
	if c.CloneOf == "" || !c.Usable() || view.givenUp(c) || c.Cluster != view.Cluster {
		return false
	}
	group, there := x.group(c)
	if !there || c.GroupUUID != "" && c.GroupUUID != group.UUID {
		return false
	}
	v, there := x.volumes[keyOfClaim(c)]
	return !there || v.State == volume.Creating || v.State == ""
}

// beingCopied gives the PersistentVolume that is to begin as a copy of the volume of
// a claim, or nothing. A volume that is not there cannot be saved for it, and one that
// has been moved on already can be copied in its new state.
func (x *index) beingCopied(c *Claim) string {
	v, there := x.volumes[keyOfClaim(c)]
	if !there || v.State != volume.Ready && v.State != volume.Creating {
		return ""
	}
	return x.copied[keyOfClaim(c)]
}

// Copies are the claims of volumes that are to begin as a copy of another and are to
// be made now, in order of their PersistentVolumes' names.
func Copies(view View) []Claim {
	x := newIndex(view)
	var out []Claim
	for i := range view.Claims {
		c := &view.Claims[i]
		if !x.unmadeCopy(view, c) || x.ailing[c.Group] != "" {
			continue
		}
		if v, there := x.volumes[keyOfClaim(c)]; !there || v.State == volume.Creating {
			out = append(out, *c)
		}
	}
	slices.SortFunc(out, func(a, b Claim) int { return cmp.Or(cmp.Compare(a.PV, b.PV), cmp.Compare(a.UID, b.UID)) })
	return out
}

// A copyJob is a copy that is to be made.
type copyJob struct {
	claim  Claim
	object *corev1.PersistentVolume
}

// enqueueCopies hands the copies of a round to their lane: writing the log of a large
// volume anew takes a while.
func (d *Daemon) enqueueCopies(f findings) {
	var jobs []copyJob
	now, busy := d.copier.at()
	for _, c := range Copies(f.view) {
		waits := d.copies.waits(string(c.UID), f.at)
		if !waits && (!busy || now.claim.UID != c.UID) {
			jobs = append(jobs, copyJob{c, f.objects[c.PV]})
		}
	}
	d.copier.set(jobs)
}

// makeCopy does one job. It is the work of the lane.
func (d *Daemon) makeCopy(ctx context.Context, j copyJob) {
	c, log := j.claim, klog.FromContext(ctx)
	err := d.engine.MakeClone(ctx, volume.Spec{
		Group: c.Group, GroupUUID: c.GroupUUID, Name: c.Volume, Size: c.Size, Layout: c.Shape.Layout, ThinPool: c.Shape.ThinPool,
		CloneOf: c.CloneOf, Inodes: c.Inodes, Kind: c.Kind, Cluster: c.Cluster, Namespace: c.ClaimNamespace,
	})
	if ctx.Err() != nil {
		return // told to end; the next process, or the first mount, makes it
	}
	defer d.kick()
	id, topic := string(c.UID), "copy "+string(c.UID)
	if err == nil {
		d.copies.clear(id)
		d.said.over(topic)
		log.Info("Volume made as a copy", "volume", keyOfClaim(&c).String(), "of", c.CloneOf, "persistentvolume", c.PV)
		message := "the copy of volume " + string(c.CloneOf) + " is taken: what is written there from now on is not in it"
		d.events.onVolume(j.object, normal, "VolumeCopied", message)
		d.events.onClaim(ctx, claimOfObject(j.object), normal, "VolumeCopied", message)
		return
	}
	now := d.cfg.Now()
	b := d.copies.add(id, now, err.Error())
	if !d.said.fresh(topic, err.Error(), now) {
		return
	}
	log.Error(err, "A volume could not be made as a copy; it is tried again", "volume", keyOfClaim(&c).String(), "of", c.CloneOf, "in", b.delay)
	message := err.Error() + "; it is tried again"
	d.events.onVolume(j.object, warning, "VolumeNotCopied", message)
	d.events.onClaim(ctx, claimOfObject(j.object), warning, "VolumeNotCopied", message)
}
