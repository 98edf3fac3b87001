package eviction

import (
	"cmp"
	"maps"
	"slices"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A room is the bytes of a pool that LVM may allocate, in total and on each physical device, by path. For a volume that LVM
// may place anywhere, the total counts; for one whose layout needs several devices, both.
type room struct {
	total volume.Bytes
	on    map[string]volume.Bytes // nil if unknown
}

func (r room) clone() room { return room{r.total, maps.Clone(r.on)} }

// add adds what the eviction of a volume frees. If the devices are unknown, only the total grows.
func (r *room) add(v *inventory.Volume) {
	r.total += freesOn(r.on, v)
	addOn(r.on, v)
}

// freesOn returns what LVM may allocate of the room of a volume once it is free: what is not on other devices than these.
// If the devices are unknown, that is all.
func freesOn(on map[string]volume.Bytes, v *inventory.Volume) volume.Bytes {
	out := v.Allocated
	for device, held := range v.ByDevice {
		if _, usable := on[device]; on != nil && !usable {
			out -= held
		}
	}
	return max(0, out)
}

func addOn(on map[string]volume.Bytes, v *inventory.Volume) {
	for device, held := range v.ByDevice {
		if _, usable := on[device]; usable { // LVM cannot allocate on other devices
			on[device] += held
		}
	}
}

// with returns the room plus what these volumes free.
func (r room) with(volumes []*inventory.Volume) room {
	r = r.clone()
	for _, v := range volumes {
		r.add(v)
	}
	return r
}

// without returns the room minus what a volume frees.
func (r room) without(v *inventory.Volume) room {
	r = r.clone()
	r.total -= freesOn(r.on, v)
	for device, held := range v.ByDevice {
		if _, usable := r.on[device]; usable {
			r.on[device] -= held
		}
	}
	return r
}

// allocate subtracts what a demand needs if there is enough, and reports whether there is. It chooses devices like
// the engine and LVM: those with the most room.
func (r *room) allocate(d demand) bool {
	if d.need > r.total {
		return false
	}
	if d.multiDevice() && r.on != nil {
		devices := r.devicesByRoom(d)
		if len(devices) < d.devices || r.on[devices[d.devices-1]] < d.share {
			return false
		}
		for _, device := range devices[:d.devices] {
			r.on[device] -= d.share
		}
	}
	r.total -= d.need
	return true
}

// reserve subtracts what a demand needs, as far as available.
func (r *room) reserve(d demand) {
	if r.allocate(d) {
		return
	}
	r.total = max(0, r.total-d.need)
	if d.multiDevice() {
		for device := range r.on {
			r.on[device] = max(0, r.on[device]-d.share)
		}
	}
}

// devicesByRoom returns the devices that a demand may use, the one with the most room first.
func (r room) devicesByRoom(d demand) []string {
	var out []string
	for device := range r.on {
		if d.allowedDevices == nil || slices.Contains(d.allowedDevices, device) {
			out = append(out, device)
		}
	}
	slices.SortFunc(out, func(a, b string) int { return cmp.Or(cmp.Compare(r.on[b], r.on[a]), cmp.Compare(a, b)) })
	return out
}

// shortfallOf returns what a demand lacks on the devices with the most room.
func (r room) shortfallOf(d demand) (sum volume.Bytes) {
	devices := r.devicesByRoom(d)
	for i := range d.devices {
		available := volume.Bytes(0)
		if i < len(devices) {
			available = r.on[devices[i]]
		}
		sum += max(0, d.share-available)
	}
	return sum
}

// A goal is the set of demands for which room is made.
type goal struct {
	served []demand
	target volume.Bytes // what they need
	thin   bool
}

// goalWithin chooses as many demands as reach can serve, the smallest first. In a thin pool any room helps,
// including that for overwriting shared blocks.
func (p *poolPlan) goalWithin(demands []demand, reach room) goal {
	g, sum, left := goal{thin: p.Thin != nil}, p.shared, reach.clone()
	for _, d := range demands {
		sum += d.need
		if left.allocate(d) {
			g.served = append(g.served, d)
			g.target += d.need
		}
	}
	if g.thin {
		g.target = min(sum, reach.total)
	}
	return g
}

// met reports whether room is enough for all demands that the goal serves.
func (g goal) met(r room) bool {
	if g.thin {
		return r.total >= g.target
	}
	r = r.clone()
	for _, d := range g.served {
		if !r.allocate(d) {
			return false
		}
	}
	return true
}

// victims returns the volumes of from, in that order, whose room the goal needs in addition to r. If layouts
// need several devices, volumes whose room turns out not to help are kept, the most recently used first.
func (g goal) victims(r room, from []*inventory.Volume) []*inventory.Volume {
	var out []*inventory.Volume
	r = r.clone()
	for _, v := range from {
		if g.met(r) {
			break
		}
		r.add(v)
		out = append(out, v)
	}
	if g.thin || !slices.ContainsFunc(g.served, demand.multiDevice) {
		return out
	}
	for i := len(out) - 1; i >= 0; i-- {
		if left := r.without(out[i]); g.met(left) {
			r, out = left, slices.Delete(out, i, i+1)
		}
	}
	return out
}
