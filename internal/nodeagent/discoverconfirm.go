package nodeagent

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/discovery"
)

// sameDiscovered reports whether a discovered PersistentVolume says now what it was judged by.
func sameDiscovered(now, was *corev1.PersistentVolume) bool {
	is := discovery.Volume{}
	if now.Spec.Local != nil {
		is = *volumeOf(now)
	}
	return is == *volumeOf(was) && now.Labels[flexlvmv1.LabelDiscoveredOn] == was.Labels[flexlvmv1.LabelDiscoveredOn]
}

// confirmCleanings asks the API server for the PersistentVolumes of the cleanings that last longer than
// discoverEvery, and stops those that it does not confirm: cleaning takes hours, and a watch that hangs looks
// like one where nobody has changed anything. Where the API server has not answered, a cleaning that is still
// wanted goes on from where it was; where the PersistentVolume has changed, it begins anew.
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
		klog.FromContext(ctx).Error(err, "A cleaning is stopped, as its PersistentVolume is not confirmed", "persistentvolume", job.object.Name)
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
