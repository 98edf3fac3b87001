package gc

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// tellFindings says what a person should know: once, and again while it lasts.
func (d *Daemon) tellFindings(ctx context.Context, f findings) {
	d.tellBlocked(ctx, f)
	d.tellClaims(ctx, f)
	d.tellOrphans(ctx, f)
	d.tellShortfall(ctx, f)
	d.said.sweep(f.at)
}

func (d *Daemon) tellBlocked(ctx context.Context, f findings) {
	log := klog.FromContext(ctx)
	if f.result.Blocked == "" {
		if d.said.over("blocked") {
			log.Info("Eviction is possible again")
		}
		return
	}
	if d.said.fresh("blocked", "", f.at) {
		log.Error(nil, "Eviction is blocked", "why", f.result.Blocked)
		d.events.onNode(warning, "EvictionBlocked", f.result.Blocked)
	}
}

// tellClaims speaks of PersistentVolumes that only a person can put right.
func (d *Daemon) tellClaims(ctx context.Context, f findings) {
	log := klog.FromContext(ctx)
	tell := func(name, why string) {
		if d.said.fresh("claim "+name, why, f.at) {
			log.Info("A PersistentVolume needs a person", "persistentvolume", name, "why", why)
			d.events.onVolume(f.objects[name], warning, "VolumeNeedsAttention", why)
		}
	}
	for name, err := range f.unreadable {
		tell(name, err.Error())
	}
	for _, v := range f.verdicts {
		if v.Action == ActionReport {
			tell(v.Claim.PV, v.Why)
		}
	}
}

// tellOrphans counts them and names a few; the NodeStorage lists them.
func (d *Daemon) tellOrphans(ctx context.Context, f findings) {
	log := klog.FromContext(ctx)
	for i := range f.result.Orphans {
		o := &f.result.Orphans[i]
		if d.said.fresh("orphan "+o.Volume.UUID, "", f.at) {
			log.Info("Orphan found", "volume", keyOf(&o.Volume).String(), "age", o.Age.String(), "why", o.Message)
		}
	}
	n := len(f.result.Orphans)
	if n == 0 {
		d.said.over("orphans")
		return
	}
	var names []string
	for i := range f.result.Orphans[:min(n, 3)] {
		names = append(names, keyOf(&f.result.Orphans[i].Volume).String())
	}
	text := fmt.Sprintf("%s on this node that no PersistentVolume explains (the oldest: %s); see `kubectl describe nodestorage %s`",
		volumes(n), strings.Join(names, ", "), d.cfg.Node)
	if d.said.fresh("orphans", text, f.at) {
		d.events.onNode(warning, "OrphansFound", text)
	}
}

// tellShortfall tells the node, and the claims that have to wait.
func (d *Daemon) tellShortfall(ctx context.Context, f findings) {
	log := klog.FromContext(ctx)
	var waiting map[volume.PoolName][]*Claim
	for _, p := range f.result.Pools {
		topic := "shortfall " + p.Pool.UUID
		if p.Shortfall == 0 {
			if d.said.over(topic) {
				log.Info("There is room again", "pool", p.Pool.Name)
			}
			continue
		}
		if d.said.fresh(topic, p.Shortfall.String(), f.at) {
			log.Info("A pool is short of room", "pool", p.Pool.Name, "shortfall", int64(p.Shortfall), "why", p.ShortfallMessage)
			d.events.onNode(warning, "Shortfall", p.ShortfallMessage)
		}
		if waiting == nil {
			waiting = waitingFor(f)
		}
		for _, c := range waiting[p.Pool.Name] {
			if d.said.fresh("waits "+string(c.UID), "", f.at) {
				ref := claimOfObject(f.objects[c.PV])
				d.events.onClaim(ctx, ref, warning, "Shortfall", fmt.Sprintf("volume %s waits for room: %s", keyOfClaim(c), p.ShortfallMessage))
			}
		}
	}
}

func claimOfObject(pv *corev1.PersistentVolume) *corev1.ObjectReference {
	if pv == nil {
		return nil
	}
	return pv.Spec.ClaimRef
}

// waitingFor are the claims of each pool that do not fit, even into what may be
// evicted: the smallest are served first.
func waitingFor(f findings) map[volume.PoolName][]*Claim {
	p := planner{view: f.view, index: newIndex(f.view)}
	p.openPools()
	p.addDemands()
	out := map[volume.PoolName][]*Claim{}
	for _, result := range f.result.Pools {
		in := p.byName[result.Pool.Name]
		room := result.Pool.Free + result.Reclaimable
		for i := range f.inventory.Volumes {
			v := &f.inventory.Volumes[i]
			if v.State == volume.Doomed && v.Pool() == result.Pool.Name && v.Cluster == f.view.Cluster {
				room += v.Device
			}
		}
		for _, want := range in.demands {
			if room -= want.need; room < 0 {
				out[result.Pool.Name] = append(out[result.Pool.Name], want.claim)
			}
		}
	}
	return out
}
