package nodeagent

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/discovery"
)

// sameDiscovered reports whether a discovered PersistentVolume still has the fields by which it was judged.
func sameDiscovered(now, was *corev1.PersistentVolume) bool {
	is := discovery.Volume{}
	if now.Spec.Local != nil {
		is = *volumeOf(now)
	}
	return is == *volumeOf(was) && now.Labels[flexlvmv1.LabelDiscoveredOn] == was.Labels[flexlvmv1.LabelDiscoveredOn]
}

// confirmCleanings asks the API server for the PersistentVolumes of cleanings that run for longer than
// discoverEvery, and stops cleanings that it does not confirm: cleaning takes hours, and a hung watch looks
// like one without changes. If the API server does not answer, a cleaning that is still wanted resumes later;
// if the PersistentVolume has changed, it starts from the beginning.
func (s *discoverer) confirmCleanings(ctx context.Context) {
	for _, job := range s.cleaningsToConfirm() {
		now, err := s.d.api.Volume(ctx, job.object.Name)
		if err == nil && sameDiscovered(now, job.object) {
			continue
		}
		if err == nil {
			err = errVolumeChanged
		}
		job.stop(err)
		klog.FromContext(ctx).Error(err, "The cleaning of a disk is stopped because its PersistentVolume could not be confirmed", "persistentvolume", job.object.Name)
	}
}

func (s *discoverer) cleaningsToConfirm() (due []*cleaning) {
	now := s.d.cfg.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, job := range s.jobs {
		if since := now.Sub(job.confirmed); since >= discoverEvery || since < 0 {
			job.confirmed = now
			due = append(due, job)
		}
	}
	return due
}
