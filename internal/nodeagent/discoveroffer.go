package nodeagent

import (
	"cmp"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/discovery"
	"github.com/flexlvm/flexlvm/internal/diskid"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
)

const (
	// maxOfferAge is how long an offer stands without a PersistentVolume before a new check whether another node has
	// a PersistentVolume of the disk, which both nodes may see. It is also how old the list of all
	// PersistentVolumes may be to refuse an offer because of another node's. An offer needs a list from the same
	// scan.
	maxOfferAge = 10 * time.Minute
	// maxExplanationAge is how old that list may be if it only explains why a disk is refused.
	maxExplanationAge = time.Hour
)

// A holder is a PersistentVolume that was created from a disk, on any node.
type holder struct {
	name, uid, node string
	disk            diskid.Names
}

// holders are the holders of the last list. They belong to the goroutine of the scans.
type holders struct {
	all     []holder
	foreign []foreignVolume   // that may be on this node
	places  []discovery.Place // of foreign, as resolved in this scan; nil: not resolved yet
	at      time.Time         // when they were listed; zero: never
	listed  bool              // listed in this scan
	err     error             // why the list of this scan failed
}

// begin starts a scan, which lists at most once.
func (h *holders) begin() { h.listed, h.err, h.places = false, nil, nil }

// listedWithin reports whether the last list is at most so old.
func (h *holders) listedWithin(age time.Duration, now time.Time) bool {
	return !h.at.IsZero() && now.Sub(h.at) < age && !now.Before(h.at)
}

// of returns the PersistentVolume of an overlapping disk: the disk itself, a part of it, or the whole that it
// is part of. node is the label of this node, whose own are compared by takenElsewhere, too.
func (h *holders) of(disk diskid.Names, node string) *holder {
	for i := range h.all {
		one := &h.all[i]
		overlaps := one.disk.OverlapElsewhere
		if one.node == node {
			overlaps = one.disk.Overlap
		}
		if overlaps(disk) {
			return one
		}
	}
	return nil
}

// holderOf returns the PersistentVolume of any node that has a disk; nil if there is none. A recent list is
// enough to refuse a disk, but not to offer it. A disk that is refused anyway needs only an old one, because a list
// of all PersistentVolumes is expensive, and such a disk may stay for months.
func (s *discoverer) holderOf(ctx context.Context, disk diskid.Names, offer bool) (*holder, error) {
	h, now, maxAge, self := &s.holders, s.d.cfg.Now(), maxExplanationAge, pv.NodeLabelValue(s.d.cfg.Node)
	if offer {
		maxAge = maxOfferAge
	}
	if h.listedWithin(maxAge, now) {
		by := h.of(disk, self)
		// This node's own are watched: an object that the watch does not show is gone.
		own := by != nil && by.node == self
		if by == nil && !offer || by != nil && !own {
			return by, nil
		}
	}
	if !h.listed {
		h.listed = true
		h.err = s.listHolders(ctx)
	}
	if h.err != nil {
		return nil, h.err
	}
	return h.of(disk, self), nil
}

// listHolders lists the PersistentVolumes, and keeps only what holderOf needs.
func (s *discoverer) listHolders(ctx context.Context) error {
	now := s.d.cfg.Now()
	var all []holder
	var foreign []foreignVolume
	hostname := s.seen.labels[corev1.LabelHostname]
	_, err := s.d.api.VolumesWithoutNodeLabel(ctx, func(v *corev1.PersistentVolume) bool {
		if disk := namesOf(v); disk.ID != "" {
			all = append(all, holder{v.Name, string(v.UID), v.Labels[flexlvmv1.LabelDiscoveredOn], disk})
		}
		if f, is := foreignOf(v); is && persistentvolume.MayBeOn(v, hostname) {
			foreign = append(foreign, f)
		}
		return false
	})
	if err != nil {
		return err
	}
	s.holders.all, s.holders.foreign, s.holders.places, s.holders.at = all, foreign, nil, now
	return nil
}

// refuseUnofferable refuses a disk without a PersistentVolume that is offered, or about to be, if it must not be offered.
func (s *discoverer) refuseUnofferable(ctx context.Context, c *discoveredCase, ledger discovery.Ledger, volumes map[string]*corev1.PersistentVolume) {
	if c.verdict.State != discovery.Ready {
		return
	}
	was := ledger[c.id()]
	err := c.found.CheckNew()
	if err != nil {
		c.refuseForNow(was, err.Error())
		return
	}
	if s.refuseIfNotEmpty(ctx, c, ledger) {
		return
	}
	c.filesystem, err = s.disks.CheckOfferable(ctx, *c.found, c.class, c.verdict.Entry)
	if err == nil && c.verdict.Entry.OwnerUnknown() {
		c.verdict.Entry.Owner, err = s.disks.Owner(*c.found)
	}
	if err != nil {
		c.refuseForNow(was, err.Error())
		return
	}
	if c.filesystem != "" { // it may have been a volume by that name
		if v, taken := c.takenElsewhere(was, volumes); taken {
			c.verdict = v
			return
		}
		if s.refuseIfNotEmpty(ctx, c, ledger) {
			return
		}
	}
	s.refuseIfHeld(ctx, c, was)
}

// refuseIfNotEmpty refuses a disk that must be empty, and is not, or not for certain.
func (s *discoverer) refuseIfNotEmpty(ctx context.Context, c *discoveredCase, ledger discovery.Ledger) (refused bool) {
	named := *c.found
	named.Aliases = c.names().Aliases
	was, others := ledger[c.id()], ledger.Uncleaned(&named)
	if !c.verdict.MustBeEmpty && len(others) == 0 {
		return false
	}
	if err := s.disks.CheckEmpty(*c.found, was.Owner); err != nil {
		c.verdict = c.verdict.NotEmpty(was, err)
		if by, _ := s.holderOf(ctx, c.names(), false); by != nil { // it explains more
			c.heldBy(was, by)
		}
		return true
	}
	c.verdict.Entry, c.verdict.MustBeEmpty = c.verdict.Entry.Empty(others), false
	return false
}

// refuseIfHeld refuses a disk that has a PersistentVolume on another node: the disk was moved, or both nodes see
// it. This node's ledger does not know of that use, and the data would reach the next tenant once that
// PersistentVolume is deleted. It also refuses a disk that has a PersistentVolume of another program, for which a recent
// list is enough.
func (s *discoverer) refuseIfHeld(ctx context.Context, c *discoveredCase, was discovery.Entry) {
	id, now := c.id(), s.d.cfg.Now()
	if was.Offered && now.Sub(s.free[id]) < maxOfferAge {
		return
	}
	var foreign error
	if s.holders.listedWithin(maxOfferAge, now) {
		foreign = s.checkForeign(ctx, c.found)
	}
	by, err := s.holderOf(ctx, c.names(), foreign == nil)
	if foreign == nil && err == nil && by == nil {
		foreign = s.checkForeign(ctx, c.found)
	}
	switch {
	case err != nil:
		c.refuseForNow(was, fmt.Sprintf("cannot check whether another PersistentVolume has it: %v; it is retried", err))
	case by != nil:
		c.heldBy(was, by)
	case foreign != nil:
		c.refuseForNow(was, foreign.Error())
	default:
		s.free[id] = now
	}
}

// refuseForNow refuses a disk without withdrawing its offer. Otherwise the next offer would have a new number,
// and a second PersistentVolume could be created from a disk whose first one came and went meanwhile.
func (c *discoveredCase) refuseForNow(was discovery.Entry, why string) {
	c.refuse(was, why)
	c.verdict.Entry.Offered = was.Offered
}

// heldBy refuses a disk that has another PersistentVolume, and records that: once that is gone, the disk must
// be empty before it is offered.
func (c *discoveredCase) heldBy(was discovery.Entry, by *holder) {
	c.refuse(was.HandedOut(by.uid), fmt.Sprintf("PersistentVolume %s of node %s was created for %s: give the disk back to that node; or, if nobody needs the data, delete the claim and that PersistentVolume, and empty the disk, which is offered then",
		by.name, cmp.Or(by.node, "(none named)"), by.disk.ID))
}
