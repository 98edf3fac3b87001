package nodeagent

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/discovery"
)

// handleChanges triggers a scan for every change in the watches.
func (s *discoverer) handleChanges(ctx context.Context) error {
	for of, informer := range map[string]cache.SharedIndexInformer{"VolumeDiscovery": s.spec, "discovered PersistentVolumes": s.volumes} {
		if err := logInterruptions(ctx, informer, of); err != nil {
			return err
		}
	}
	_, err := s.spec.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { s.kick() }, UpdateFunc: func(any, any) { s.kick() }, DeleteFunc: func(any) { s.kick() },
	})
	if err != nil {
		return err
	}
	_, err = s.volumes.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { s.kick() }, UpdateFunc: s.volumeChanged, DeleteFunc: s.volumeGone})
	return err
}

// A departure is a PersistentVolume that is gone.
type departure struct{ uid, claim string } // UIDs; claim is empty if none was bound

// volumeChanged stops the cleaning for a PersistentVolume that has changed. A person who changes its policy or
// its claim wants to keep the remaining data, and the next scan may be minutes away.
func (s *discoverer) volumeChanged(before, after any) {
	was, now := before.(*corev1.PersistentVolume), after.(*corev1.PersistentVolume)
	if was.UID != now.UID { // it was deleted and created again while the watch was down
		s.volumeGone(was)
		return
	}
	if was.Spec.Local == nil || now.Spec.Local == nil || *volumeOf(was) != *volumeOf(now) {
		s.stopCleaning(was)
	}
	s.kick()
}

// volumeGone stops the cleaning for a PersistentVolume that is gone, and keeps its UID for the next scan,
// because no scan may have seen it.
func (s *discoverer) volumeGone(o any) {
	if unknown, is := o.(cache.DeletedFinalStateUnknown); is {
		o = unknown.Obj
	}
	if v, is := o.(*corev1.PersistentVolume); is {
		s.stopCleaning(v)
		out := departure{uid: string(v.UID)}
		if ref := v.Spec.ClaimRef; ref != nil {
			out.claim = string(ref.UID)
		}
		s.mu.Lock()
		disk := v.Annotations[flexlvmv1.AnnotationDisk]
		s.departed[disk] = append(s.departed[disk], out)
		s.mu.Unlock()
	}
	s.kick()
}

// recordDepartures records in the ledger the PersistentVolumes that came and went between two scans. Their disks were
// handed out, and must be empty before they are offered again. It returns how many it has recorded, by disk.
func (s *discoverer) recordDepartures(ledger discovery.Ledger) map[string]int {
	there := map[string]bool{}
	for _, o := range s.volumes.GetStore().List() {
		there[o.(*corev1.PersistentVolume).Annotations[flexlvmv1.AnnotationDisk]] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	done := map[string]int{}
	for disk, all := range s.departed {
		if s.busy[disk] {
			continue // the cleaning writes the disk's entry itself
		}
		done[disk] = len(all)
		for _, one := range all {
			if e, known := ledger[disk]; known && !there[disk] && !one.followedBy(e) {
				ledger[disk] = e.HandedOut(one.uid)
			}
		}
	}
	return done
}

// followedBy reports whether the ledger's entry of a disk accounts for the departure: the disk was handed out
// with this PersistentVolume, or was cleaned after it and its last claim.
func (d departure) followedBy(e discovery.Entry) bool {
	if e.CleanedAfter(d.uid) {
		return e.Volume != d.uid || d.claim == "" || e.Claim == "" || d.claim == e.Claim
	}
	return e.Volume == d.uid
}

// dropRecorded drops the departures that recordDepartures has recorded, once the ledger is saved.
func (s *discoverer) dropRecorded(done map[string]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for disk, n := range done {
		if s.departed[disk] = s.departed[disk][n:]; len(s.departed[disk]) == 0 {
			delete(s.departed, disk)
		}
	}
}

// stopCleaning stops the cleaning for a PersistentVolume that has changed. If it is still wanted, it starts from
// the beginning: the change may be undone before a scan sees it.
func (s *discoverer) stopCleaning(v *corev1.PersistentVolume) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if job := s.jobs[v.Annotations[flexlvmv1.AnnotationDisk]]; job != nil && job.volume == string(v.UID) {
		job.stop(errVolumeChanged)
	}
}
