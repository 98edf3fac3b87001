package nodeagent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/iolimit"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// announceBudget bounds the time that one round spends on reading claims in order to warn them, because reads
// are slow while the API server does not answer. The next round warns the rest.
const announceBudget = 5 * time.Second

// announceObservation logs conditions that need a person's attention, and sends events: once, and again while
// they last.
func (d *Daemon) announceObservation(ctx context.Context, f observation) {
	ctx, cancel := context.WithTimeout(ctx, announceBudget)
	defer cancel()
	d.announceBlocked(ctx, f)
	d.announceClaims(ctx, f)
	d.announceOrphans(ctx, f)
	d.announceShortfall(ctx, f)
	d.announceSnapshots(ctx, f)
	d.dedupe.sweep(f.at)
}

func (d *Daemon) announceBlocked(ctx context.Context, f observation) {
	log := klog.FromContext(ctx)
	if f.result.Blocked == "" && d.dedupe.end("blocked") {
		log.Info("Eviction is possible again")
	}
	if f.result.Blocked != "" && d.dedupe.note("blocked", "", f.at) {
		log.Error(nil, "Eviction is blocked", "why", f.result.Blocked)
		d.events.onNode(warning, "EvictionBlocked", f.result.Blocked)
	}
	if why := f.result.OrphansBlocked; why != "" && d.dedupe.note("orphans blocked", "", f.at) {
		log.Error(nil, "Eviction of orphans is blocked", "why", why)
		d.events.onNode(warning, "EvictionBlocked", why)
	}
}

// announceClaims announces PersistentVolumes that need manual action.
func (d *Daemon) announceClaims(ctx context.Context, f observation) {
	log, all := klog.FromContext(ctx), needAttention(f)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		why := all[name]
		if d.dedupe.note("claim "+name, why, f.at) {
			log.Info("A PersistentVolume needs manual action", "persistentvolume", name, "why", why)
			d.events.onVolume(f.objects[name], warning, "VolumeNeedsAttention", why)
		}
		d.warnClaim(ctx, f.objects[name], "VolumeNeedsAttention", why, why)
	}
}

// needAttention returns why PersistentVolumes need manual action, by name.
func needAttention(f observation) map[string]string {
	out := map[string]string{}
	for i := range f.view.PersistentVolumes {
		v := &f.view.PersistentVolumes[i]
		if why := ineffective(v); why != "" {
			out[v.PV] = why
		}
	}
	for name, err := range f.unreadable {
		out[name] = err.Error()
	}
	for _, v := range f.verdicts { // these matter more
		if v.Action == eviction.ActionReport {
			out[v.PersistentVolume.PV] = v.Why
		}
	}
	return out
}

// ineffective reports which annotations of a usable PersistentVolume do not have the intended effect. The
// volume is used all the same.
func ineffective(v *persistentvolume.Volume) string {
	if v.Placeholder || !v.Usable() {
		return ""
	}
	var wrong []string
	if err := notTrimmed(v); err != nil {
		wrong = append(wrong, fmt.Sprintf("PersistentVolume %s is not trimmed: %v", v.PV, err))
	}
	if _, err := volume.ParseOnNodeLoss(pv.AnnotationOnNodeLoss, v.OnNodeLoss); err != nil {
		wrong = append(wrong, fmt.Sprintf("%s is kept if the node of PersistentVolume %s is lost: %v", v.User(), v.PV, err))
	}
	return strings.Join(wrong, "; ")
}

// announceOrphans announces the number of orphans and the names of a few; the NodeStorage lists them.
func (d *Daemon) announceOrphans(ctx context.Context, f observation) {
	log := klog.FromContext(ctx)
	for i := range f.result.Orphans {
		o := &f.result.Orphans[i]
		if d.dedupe.note("orphan "+o.Volume.UUID, "", f.at) {
			log.Info("Orphan found", "volume", eviction.KeyOf(&o.Volume).String(), "age", o.Age.String(), "why", o.Message)
		}
	}
	n := len(f.result.Orphans)
	if n == 0 {
		d.dedupe.end("orphans")
		return
	}
	var names []string
	for i := range f.result.Orphans[:min(n, 3)] {
		names = append(names, eviction.KeyOf(&f.result.Orphans[i].Volume).String())
	}
	text := fmt.Sprintf("%s on this node without a PersistentVolume (the oldest: %s); see `kubectl describe nodestorage %s`",
		volume.Pluralize(n, "volume", "volumes"), strings.Join(names, ", "), d.cfg.Node)
	if d.dedupe.note("orphans", text, f.at) {
		d.events.onNode(warning, "OrphansFound", text)
	}
}

// announceShortfall announces a lack of room on the node and on the claims that wait for it.
func (d *Daemon) announceShortfall(ctx context.Context, f observation) {
	log := klog.FromContext(ctx)
	for _, p := range f.result.Pools {
		topic := "shortfall " + p.Pool.UUID
		if p.Shortfall == 0 {
			if d.dedupe.end(topic) {
				log.Info("There is room again", "pool", p.Pool.Name)
			}
			continue
		}
		shown := roundUp(p.Shortfall, 0, eviction.MessageStep(p.Pool)) // as in the message
		if d.dedupe.note(topic, shown.String(), f.at) {
			log.Info("A pool is short of room", "pool", p.Pool.Name, "shortfall", int64(p.Shortfall), "why", p.ShortfallMessage)
			d.events.onNode(warning, "Shortfall", p.ShortfallMessage)
		}
		for _, c := range p.Waiting {
			text := fmt.Sprintf("volume %s waits for room: %s", eviction.KeyOfPersistentVolume(c), p.ShortfallMessage)
			d.warnClaim(ctx, f.objects[c.PV], "Shortfall", "", text)
		}
	}
}

// warnClaim sends a warning event to the claim of a PersistentVolume: at first, when state changes, and again
// after repeatAfter. If the claim cannot be read or is not bound yet, the next round tries again.
func (d *Daemon) warnClaim(ctx context.Context, of *corev1.PersistentVolume, reason, state, text string) {
	if of == nil {
		return
	}
	topic := claimTopic(of.UID, reason)
	if d.dedupe.note(topic, state, d.cfg.Now()) && !d.events.onClaim(ctx, claimOfObject(of), warning, reason, text) {
		d.dedupe.end(topic)
	}
}

func claimTopic(of types.UID, reason string) string { return "claim of " + string(of) + " " + reason }

func claimOfObject(pv *corev1.PersistentVolume) *corev1.ObjectReference {
	if pv == nil {
		return nil
	}
	return pv.Spec.ClaimRef
}

// limit passes the PersistentVolumes of this round to the IO limiter.
func (d *Daemon) limit(f observation) {
	volumes, objects := f.view.PersistentVolumes, f.objects
	d.limiter.Update(iolimit.Desired{
		PersistentVolumes: volumes, Partial: len(f.unreadable) > 0,
		Report: func(ctx context.Context, o iolimit.Outcome) { d.announceLimits(ctx, volumes, objects, o) },
	})
}

// announceLimits announces limits that are not in force: once, and again while that lasts.
func (d *Daemon) announceLimits(ctx context.Context, volumes []persistentvolume.Volume, objects map[string]*corev1.PersistentVolume, o iolimit.Outcome) {
	log := klog.FromContext(ctx)
	ctx, cancel := context.WithTimeout(ctx, announceBudget)
	defer cancel()
	d.out.Metrics.ioLimited(o.Applied, len(o.Failed))
	for i := range volumes {
		c := &volumes[i]
		topic := "io limit " + string(c.UID)
		err := o.Failed[c.PV]
		if err == nil {
			d.dedupe.end(claimTopic(c.UID, "IOLimitNotApplied"))
			if d.dedupe.end(topic) {
				log.Info("IO limits are in force again, or no longer wanted", "persistentvolume", c.PV)
			}
			continue
		}
		text := fmt.Sprintf("the limits on the IO of volume %s are not in force: %v", eviction.KeyOfPersistentVolume(c), err)
		if d.dedupe.note(topic, text, d.cfg.Now()) {
			log.Info("Limits on IO are not in force", "persistentvolume", c.PV, "err", err.Error())
			d.events.onVolume(objects[c.PV], warning, "IOLimitNotApplied", text)
		}
		d.warnClaim(ctx, objects[c.PV], "IOLimitNotApplied", text, text)
	}
}
