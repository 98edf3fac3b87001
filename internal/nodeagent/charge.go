package nodeagent

import (
	"context"
	"strconv"

	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/pv"
)

// charge records on PersistentVolumes what their volumes take, if that is more than their charge. A
// PersistentVolume without the annotation is charged by its size alone.
func (d *Daemon) charge(ctx context.Context, f observation) {
	for _, u := range eviction.Undercharged(f.view) {
		object := f.objects[u.PV]
		if object == nil || object.Annotations[pv.AnnotationCharged] == "" {
			continue
		}
		id := string(object.UID)
		if d.chargeRetries.waits(id, f.at) {
			continue
		}
		bytes := strconv.FormatInt(int64(u.Charged), 10)
		log := klog.FromContext(ctx).WithValues("persistentvolume", u.PV, "bytes", bytes)
		if err := d.api.Annotate(ctx, object, map[string]*string{pv.AnnotationCharged: &bytes}); err != nil {
			b := d.chargeRetries.add(id, d.cfg.Now(), err.Error())
			if !d.chargeRetries.isTransient(err, b) && d.dedupe.note("charge "+id, err.Error(), f.at) {
				log.Error(err, "The size of a volume could not be recorded on its PersistentVolume; it is retried")
			}
			continue
		}
		d.chargeRetries.clear(id)
		d.dedupe.end("charge " + id)
		log.Info("Recorded the size of a volume on its PersistentVolume")
	}
}
