package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"k8s.io/klog/v2"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// createLocalVolume creates a declared volume before it has a claim, if its PersistentVolume still exists: a
// round's list may be older than the deletion.
func (d *Daemon) createLocalVolume(ctx context.Context, j createJob, spec volume.Spec) {
	c := j.pv
	err := d.engine.CreateAhead(ctx, spec, func(ctx context.Context) error { return d.stillWanted(ctx, j) })
	if ctx.Err() != nil {
		return // the daemon stops; the next process or the first mount creates it
	}
	defer d.kick()
	switch {
	case errors.Is(err, errNotWanted):
	case err != nil:
		if d.noteCreateFailed(ctx, j, "Declared volume could not be created", err) {
			d.events.onVolume(j.object, warning, "VolumeNotMade", err.Error()+"; it is retried")
		}
	default:
		d.noteCreated(j)
		klog.FromContext(ctx).Info("Declared volume created", "volume", eviction.KeyOfPersistentVolume(&c).String(), "persistentvolume", c.PV)
		d.events.onVolume(j.object, normal, "VolumeMade", "the volume was created and waits for its claim")
	}
}

// declaredVolumes returns which declared volumes without a claim have been created, and why others have not, in
// order of their PersistentVolumes' names.
func declaredVolumes(f observation, failed func(id string) (why string)) (out []flexlvmv1.DeclaredVolume) {
	made := map[string]bool{}
	for i := range f.inventory.Volumes {
		if v := &f.inventory.Volumes[i]; v.State == volume.Ready {
			made[eviction.KeyOf(v).String()] = true
		}
	}
	problems := map[string]string{}
	for _, v := range f.verdicts {
		if v.Action == eviction.ActionReport {
			problems[string(v.PersistentVolume.UID)] = v.Why
		}
	}
	for i := range f.view.PersistentVolumes {
		c := &f.view.PersistentVolumes[i]
		if !eviction.IsUnboundLocalVolume(c) {
			continue
		}
		one := flexlvmv1.DeclaredVolume{Name: c.PV, State: flexlvmv1.DeclaredWaiting}
		switch {
		case made[eviction.KeyOfPersistentVolume(c).String()]:
			one.State = flexlvmv1.DeclaredMade
		case problems[string(c.UID)] != "":
			one.Message = clip(problems[string(c.UID)], maxMessage)
		case c.Encrypted:
			one.Message = "it is encrypted, so it is created by its first mount, which has the key"
		default:
			one.Message = clip(failed(string(c.UID)), maxReason)
		}
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b flexlvmv1.DeclaredVolume) int { return cmp.Compare(a.Name, b.Name) })
	return out[:min(len(out), flexlvmv1.MaxDeclaredVolumes)]
}

// whyNotCreated returns the last error of creating a declared volume; empty if there was no attempt.
func (d *Daemon) whyNotCreated(id string) string {
	r, _ := d.createRetries.get(id)
	return r.why
}
