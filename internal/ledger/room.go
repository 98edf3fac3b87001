package ledger

import (
	"fmt"
	"maps"
	"slices"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// closed returns why a node takes no new volumes in a pool, regardless of its room, or "".
func (a *account) closed(in volume.PoolName, p pool) string {
	if p.closed != "" {
		return fmt.Sprintf("takes no new volumes in %s %q: %s", in.Noun(), in, p.closed)
	}
	if unread := a.unread(); unread != "" {
		return unreadable(unread)
	}
	return ""
}

// left returns the room of a pool that is not promised; negative if more is promised than there is.
func (l *Ledger) left(a *account, in volume.PoolName, p pool) volume.Bytes {
	left := p.allocatable - a.leaving(in, p)
	for name, e := range a.written {
		left -= a.taken(name, e.charge(), in, p)
	}
	now := l.now()
	for name, r := range a.reserved {
		if now.Before(r.until) {
			left -= r.from(in, p)
		} else {
			delete(a.reserved, name)
			delete(l.where, name)
		}
	}
	return left
}

// leftOfStaying is left without the charges of PersistentVolumes that are being removed: from some moment of their
// release on, a node does not count their volumes as allocatable. Nothing may be promised by it.
func (l *Ledger) leftOfStaying(a *account, in volume.PoolName, p pool) volume.Bytes {
	return l.left(a, in, p) + a.removing(in, p)
}

// removing returns how much of a pool a node may have subtracted for PersistentVolumes that are being removed, and
// that are charged, too. For a thin volume, a node subtracts all that it could hold, which its charge may be a part of.
func (a *account) removing(in volume.PoolName, p pool) (sum volume.Bytes) {
	add := func(c charge, taken volume.Bytes) {
		if c.removing && c.Shape.Layout == volume.Thin && taken > 0 {
			taken = max(taken, c.Device)
		}
		if c.removing {
			sum += taken
		}
	}
	for name, e := range a.written {
		add(e.charge(), a.taken(name, e.charge(), in, p))
	}
	for _, r := range a.reserved {
		add(r.charge, r.from(in, p))
	}
	for _, d := range a.departed {
		d.removing = true // it is gone
		add(d.charge, d.from(in, p))
	}
	return sum
}

// taken returns how much of a pool a written PersistentVolume takes, including promised growth.
func (a *account) taken(name string, c charge, in volume.PoolName, p pool) volume.Bytes {
	out := c.from(in, p)
	if grows, growing := a.growths[name]; growing {
		out = max(out, grows.from(in, p))
	}
	return out
}

// A spread is how much is promised in a pool, by the number of devices on which a volume takes equal
// shares; 1 stands for volumes that LVM may place on a single device.
type spread map[int]volume.Bytes

// spread returns the spread of the promises in a pool, including volumes that exist already: which ones
// do is unknown.
func (a *account) spread(in volume.PoolName, p pool) spread {
	out := spread{}
	add := func(c charge, taken volume.Bytes) {
		devices := c.Shape.Devices()
		if c.Content > 0 {
			devices = 1 // the store of a copy-on-write snapshot is linear
		}
		out[devices] += taken
	}
	for name, e := range a.written {
		add(e.charge(), a.taken(name, e.charge(), in, p))
	}
	for _, r := range a.reserved {
		add(r.charge, r.from(in, p))
	}
	for _, d := range a.departed {
		add(d.charge, d.from(in, p))
	}
	return out
}

// onEach returns the most that the promised volumes that do not exist yet can take of any device, given
// how much they take in total: the volumes on the fewest devices count first, and what is not explained
// by any volume counts in full.
func (s spread) onEach(pending volume.Bytes) (sum volume.Bytes) {
	for _, devices := range slices.Sorted(maps.Keys(s)) {
		part, n := min(pending, s[devices]), volume.Bytes(devices)
		sum += (part + n - 1) / n
		pending -= part
	}
	return sum + pending
}

// from returns how much a charge takes from a pool.
func (c charge) from(in volume.PoolName, p pool) volume.Bytes {
	if c.in != in || c.uuid != "" && c.uuid != p.uuid {
		return 0
	}
	return c.In(p.extent)
}
