package eviction

import (
	"fmt"
	"slices"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// closedMetadataPercent is the percentage of the usable half of LVM's metadata area from which on no new volume is
// accepted, and volumes are evicted: the rest is for growing and removing existing volumes.
const closedMetadataPercent = 90

// minVolumeMetadata is less than LVM's metadata about a volume takes, which is about 600 bytes, and less than each copy of
// a mirrored volume takes in addition.
const minVolumeMetadata volume.Bytes = 400

// sector is the unit in which LVM reports how much of its metadata area is free, rounded down.
const sector volume.Bytes = 512

// MetadataUsedPercent returns how full the usable half of a group's LVM metadata area is: LVM writes each version of
// the metadata next to the previous one.
func MetadataUsedPercent(p inventory.Pool) int {
	usable := p.MetadataSize / 2
	return volume.Percent(max(0, usable-p.MetadataFree), usable)
}

// metadataExcess returns how much of a group's LVM metadata area must become free before the group takes new volumes
// again; 0 if it takes them, or if the size of the area is unknown.
func metadataExcess(p inventory.Pool) volume.Bytes {
	if MetadataUsedPercent(p) < closedMetadataPercent {
		return 0
	}
	usable := p.MetadataSize / 2
	closed := (usable*closedMetadataPercent + 99) / 100 // the least use that closes the group
	return usable - p.MetadataFree - closed + 1
}

// metadataFull returns a message if the LVM metadata area of a pool's group is too full for new volumes; empty if it is
// not.
func metadataFull(p inventory.Pool) string {
	if metadataExcess(p) == 0 {
		return ""
	}
	return fmt.Sprintf("the usable half of LVM's metadata area of volume group %s is %d%% full, and from %d%% on the group takes no new volumes",
		p.Name.Group(), MetadataUsedPercent(p), closedMetadataPercent)
}

// evictForMetadata evicts one unreferenced volume of a volume group whose LVM metadata area is too full, if evicting
// all that may be evicted would certainly be enough: if volumes in use or of others fill the area, data is not given up
// in vain. How much of the area one eviction frees is known only after the removal, so the next one waits for that.
// That nothing of the area is free is no evidence that it is full: with lvmetad, LVM 2.02 always reports that.
func (p *planner) evictForMetadata(pool *poolPlan) []Eviction {
	group := pool.Name.Group()
	if metadataExcess(pool.Pool) == 0 || pool.MetadataFree <= 0 || pool.Name != volume.PoolOf(group, "") || p.freesMetadata(pool) {
		return nil
	}
	candidates := p.metadataCandidates(group)
	if !p.enoughForMetadata(pool, candidates) {
		return nil
	}
	v := candidates[0]
	return []Eviction{{
		Volume: *v, Reason: ReasonLVMMetadata,
		Message: fmt.Sprintf("%s; evicting this volume frees some of it, and %s of room: %s", metadataFull(pool.Pool), v.Allocated, p.describeIdle(v)),
	}}
}

// metadataCandidates returns the unreferenced volumes of a volume group that may be evicted to free a part of its LVM
// metadata area, in order, from all pools of the group except directory pools, whose volumes take none of it. If a pool
// is stalled, there are none: the cause may be the group's.
func (p *planner) metadataCandidates(group volume.Group) []*inventory.Volume {
	if p.result.Blocked != "" || p.stalledPool(group) != nil {
		return nil
	}
	var out []*inventory.Volume
	for i := range p.result.Released {
		r := &p.result.Released[i]
		pool := p.byName[r.Volume.Pool()]
		if r.Kept == "" && r.Volume.Group == group && pool.Directories == nil && !pool.ContentUnknown() {
			out = append(out, &r.Volume)
		}
	}
	slices.SortFunc(out, evictionOrder)
	return out
}

// stalledPool returns a stalled pool of a volume group, except directory pools; nil if there is none.
func (p *planner) stalledPool(group volume.Group) *poolPlan {
	i := slices.IndexFunc(p.pools, func(pool *poolPlan) bool {
		return pool.Name.Group() == group && pool.Directories == nil && pool.stalled()
	})
	if i < 0 {
		return nil
	}
	return p.pools[i]
}

// enoughForMetadata reports whether evicting these volumes certainly lets a group take new volumes again, whose LVM
// metadata area is too full. Those about which the API server has not been asked yet may turn out to be kept.
func (p *planner) enoughForMetadata(pool *poolPlan, candidates []*inventory.Volume) bool {
	var freed volume.Bytes
	for _, v := range candidates {
		if p.view.KeptUnchecked[v.UUID] {
			continue
		}
		freed += minVolumeMetadata
		if v.Layout == volume.Raid1 {
			freed += minVolumeMetadata * volume.Bytes(v.Devices())
		}
	}
	return freed/sector*sector >= metadataExcess(pool.Pool)
}

// freesMetadata reports whether volumes of a group, whose own pool is given, free some of its LVM metadata area: they
// are being removed, or this plan evicts or postpones evicting them.
func (p *planner) freesMetadata(pool *poolPlan) bool {
	if pool.postponed { // those of thin pools are never postponed
		return true
	}
	takes := func(v *inventory.Volume) bool { return v.Group == pool.Name.Group() && v.Layout != volume.Directory }
	for i := range p.view.Volumes {
		if v := &p.view.Volumes[i]; takes(v) && p.view.aboutToBeFree(v) {
			return true
		}
	}
	return slices.ContainsFunc(p.result.Evictions, func(e Eviction) bool { return takes(&e.Volume) })
}

// metadataAdvice describes what becomes of a group whose LVM metadata area is too full.
func (p *planner) metadataAdvice(pool *poolPlan) string {
	const advice = "delete claims that nobody needs, or create a group with a larger area (`flexlvm vg create`)"
	const ifReallyFull = "if the area is really full, first remove a logical volume of another program, because LVM may not have room to write even a release; " +
		"or annotate the PersistentVolumes of claims that nobody needs (`kubectl annotate pv PV " + pv.AnnotationReclaim + "=immediate --overwrite`), " +
		"and then delete these claims, whose volumes are then removed for ever; or create a group with a larger area (`flexlvm vg create`)"
	candidates, stalled := p.metadataCandidates(pool.Name.Group()), p.stalledPool(pool.Name.Group())
	switch {
	case pool.MetadataFree <= 0:
		return "LVM reports that nothing of it is free, as LVM 2.02 always does with lvmetad, so nothing is evicted for that; " +
			"set `use_lvmetad = 0` in lvm.conf and stop lvmetad; " + ifReallyFull
	case p.result.Blocked != "":
		return p.result.Blocked
	case stalled != nil:
		return stalled.describeUnfinished() + ", so nothing is evicted for that until that is corrected"
	case len(candidates) == 0:
		return "no volume may be evicted for that now; " + advice
	case !p.enoughForMetadata(pool, candidates):
		return fmt.Sprintf("evicting what may be evicted (%s) may not be enough, so nothing is evicted for that; %s", countVolumes(len(candidates)), advice)
	}
	return fmt.Sprintf("volumes are evicted until it is less full (%s may be); to have fewer evicted, create a group with a larger area (`flexlvm vg create`)", countVolumes(len(candidates)))
}
