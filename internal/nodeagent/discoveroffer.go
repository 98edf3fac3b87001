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
	"github.com/flexlvm/flexlvm/internal/pv"
)

// offerKept is how long an offer stands of which no PersistentVolume is made, before it is checked
// again whether another node has one of the disk, as both nodes may see it. It is also how old the
// list of all PersistentVolumes may be to refuse a disk because of another node's. To offer a disk, the
// list must be of the same look.
const offerKept = 10 * time.Minute

// A holder is a PersistentVolume that was made of a disk, on whatever node.
type holder struct{ name, uid, node, disk string }

// holders are those that the API server has shown last. They belong to the goroutine of the looks.
type holders struct {
	all   []holder
	at    time.Time // when it has shown them; zero: never
	asked bool      // in this look
	err   error     // why it has shown none in this look
}

// begin begins a look, in which the API server is asked once at most.
func (h *holders) begin() { h.asked, h.err = false, nil }

// of returns the PersistentVolume that has a disk, a part of it, or what it is a part of.
func (h *holders) of(disk string) *holder {
	for i := range h.all {
		if diskid.Overlap(h.all[i].disk, disk) {
			return &h.all[i]
		}
	}
	return nil
}

// holderOf returns the PersistentVolume of any node that has a disk; nil where none has. What was
// seen lately will do, but not to offer it.
func (s *discoverer) holderOf(ctx context.Context, disk string, offer bool) (*holder, error) {
	h, now := &s.holders, s.d.cfg.Now()
	if lately := !h.at.IsZero() && now.Sub(h.at) < offerKept && !now.Before(h.at); lately {
		by := h.of(disk)
		// This node's own are watched: one that the watch does not show any more is gone.
		own := by != nil && by.node == pv.NodeLabelValue(s.d.cfg.Node)
		if by == nil && !offer || by != nil && !own {
			return by, nil
		}
	}
	if !h.asked {
		h.asked = true
		h.err = s.askHolders(ctx)
	}
	if h.err != nil {
		return nil, h.err
	}
	return h.of(disk), nil
}

func (s *discoverer) askHolders(ctx context.Context) error {
	all, err := s.d.api.VolumesOfNoNode(ctx, func(v *corev1.PersistentVolume) bool { return v.Annotations[flexlvmv1.AnnotationDisk] != "" })
	if err != nil {
		return err
	}
	s.holders.all, s.holders.at = nil, s.d.cfg.Now()
	for i := range all {
		v := &all[i]
		s.holders.all = append(s.holders.all, holder{v.Name, string(v.UID), v.Labels[flexlvmv1.LabelDiscoveredOn], v.Annotations[flexlvmv1.AnnotationDisk]})
	}
	return nil
}

// prove looks at what is about to be offered, or has no PersistentVolume yet.
func (s *discoverer) prove(ctx context.Context, c *discoveredCase, ledger discovery.Ledger) {
	if c.verdict.State != discovery.Ready {
		return
	}
	id := c.id()
	was, others := ledger[id], ledger.Uncleaned(id)
	if c.verdict.Prove || len(others) > 0 {
		if err := s.disks.Empty(*c.found, was.Owner); err != nil {
			c.verdict = c.verdict.NotProved(was, err)
			if by, _ := s.holderOf(ctx, id, false); by != nil { // which says more
				c.heldBy(was, by)
			}
			return
		}
		c.verdict.Entry = c.verdict.Entry.Empty(others)
	}
	err := s.disks.Offerable(ctx, *c.found, c.class, c.verdict.Entry)
	if err == nil && c.verdict.Entry.OwnerUnknown() {
		c.verdict.Entry.Owner, err = s.disks.Owner(*c.found)
	}
	if err != nil {
		c.refuseForNow(was, err.Error())
		return
	}
	s.proveFree(ctx, c, was)
}

// proveFree refuses what is about to be offered if it has a PersistentVolume on another node: the
// disk was moved, or both nodes see it. This node has nothing of it in its ledger, and would hand
// the data to the next tenant once that PersistentVolume is deleted.
func (s *discoverer) proveFree(ctx context.Context, c *discoveredCase, was discovery.Entry) {
	id, now := c.id(), s.d.cfg.Now()
	if was.Offered && now.Sub(s.free[id]) < offerKept {
		return
	}
	switch by, err := s.holderOf(ctx, id, true); {
	case err != nil:
		c.refuseForNow(was, fmt.Sprintf("cannot check whether another node's PersistentVolume uses it: %v; it is tried again", err))
	case by != nil:
		c.heldBy(was, by)
	default:
		s.free[id] = now
	}
}

// refuseForNow leaves the offer that there was as it is: under another number, once this has passed, it would be
// a new one, and a second PersistentVolume be made of a disk whose first came and went meanwhile.
func (c *discoveredCase) refuseForNow(was discovery.Entry, why string) {
	c.refuse(was, why)
	c.verdict.Entry.Offered = was.Offered
}

// heldBy refuses what has another PersistentVolume, and notes it: once that is gone, the disk has to be
// empty before it is offered.
func (c *discoveredCase) heldBy(was discovery.Entry, by *holder) {
	c.refuse(was.HandedOut(by.uid), fmt.Sprintf("PersistentVolume %s of node %s was made of %s: give the disk back to that node; or, if nobody wants the data, delete the claim and that PersistentVolume, and empty the disk, which is offered then",
		by.name, cmp.Or(by.node, "(none named)"), by.disk))
}
