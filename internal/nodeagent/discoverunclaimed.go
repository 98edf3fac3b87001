package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/discovery"
	"github.com/flexlvm/flexlvm/internal/disk"
	"github.com/flexlvm/flexlvm/internal/kubeobject"
)

// unclaimed reports whether a PersistentVolume waits for its first claim, or for the next one after a person
// has removed its claimRef.
func unclaimed(v *corev1.PersistentVolume) bool {
	return v != nil && v.Spec.ClaimRef == nil && v.Status.Phase == corev1.VolumeAvailable && v.DeletionTimestamp == nil
}

// withdrawIfNotBlank refuses a PersistentVolume without a claim whose device holds data that kubelet would format,
// and lets the provisioner delete it: earlier versions created such objects. A blank device is read only once
// by this process.
func (s *discoverer) withdrawIfNotBlank(ctx context.Context, c *discoveredCase) {
	if c.verdict.State != discovery.Provided || c.class.Name == "" || !unclaimed(c.object) || s.blank[string(c.object.UID)] {
		return
	}
	of := c.class
	of.Block = kubeobject.IsBlock(c.object.Spec.VolumeMode)
	_, err := s.disks.CheckOfferable(ctx, *c.found, of, asOffered(c.verdict.Entry))
	switch {
	case err == nil:
		s.blank[string(c.object.UID)] = true
	case errors.Is(err, disk.ErrNotZero):
		c.verdict.State, c.withdrawn = discovery.Refused, true
		c.verdict.Message = fmt.Sprintf("PersistentVolume %s has no claim yet and is deleted before one is bound: %v", c.object.Name, err)
	default:
		klog.FromContext(ctx).V(1).Info("It is unknown whether the disk of a PersistentVolume without a claim is blank; it is examined again", "persistentvolume", c.object.Name, "path", c.path, "err", err.Error())
	}
}

// asOffered returns the ledger's entry as of the creation of the disk's PersistentVolume, if no claim has used
// that: a disk that was discarded before then may still read arbitrary data.
func asOffered(e discovery.Entry) discovery.Entry {
	if e.Claim == "" && len(e.Cleaned) > 0 {
		e.Volume = e.Cleaned[len(e.Cleaned)-1]
	}
	return e
}

// forgetGone drops the state of PersistentVolumes that are gone.
func (s *discoverer) forgetGone(volumes map[string]*corev1.PersistentVolume) {
	there := map[string]bool{}
	for _, v := range volumes {
		there[string(v.UID)] = true
	}
	maps.DeleteFunc(s.blank, func(uid string, _ bool) bool { return !there[uid] })
}
