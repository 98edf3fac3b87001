package nodeagent

import (
	"math"
	"time"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	// busySpan is over how long a pool's load is averaged, so that a moment's burst
	// drives nobody away.
	busySpan = 5 * time.Minute
	// busyStep is the grain in which it is told, so that it is not told all the time.
	busyStep = 10
)

// A meter measures how busy the disks of pools are: the share of time in which a
// device has something to do, averaged so that what is older counts less. It
// belongs to the goroutine of the rounds.
type meter struct {
	// ioTime is how long a device has had something to do since some instant.
	ioTime  func(device string) (time.Duration, error)
	devices map[string]sample
	told    map[volume.PoolName]int
}

type sample struct {
	at     time.Time
	ioTime time.Duration
	busy   float64 // 0 to 1
}

func newMeter(ioTime func(string) (time.Duration, error)) *meter {
	return &meter{ioTime: ioTime, devices: map[string]sample{}, told: map[volume.PoolName]int{}}
}

// measure gives the load of each pool in percent, that of its busiest device. A
// device that cannot be read counts as idle.
func (m *meter) measure(now time.Time, pools []inventory.Pool) map[volume.PoolName]int {
	if m.ioTime == nil {
		return nil
	}
	seen := map[string]sample{}
	out := map[volume.PoolName]int{}
	for _, p := range pools {
		most := 0.0
		for _, device := range p.Devices {
			s, known := seen[device]
			if !known {
				s = m.sample(now, device)
				seen[device] = s
			}
			most = max(most, s.busy)
		}
		out[p.Name] = m.steady(p.Name, 100*most)
	}
	m.devices, m.told = seen, out
	return out
}

func (m *meter) sample(now time.Time, device string) sample {
	total, err := m.ioTime(device)
	if err != nil {
		return sample{}
	}
	was, known := m.devices[device]
	is := sample{at: now, ioTime: total, busy: was.busy}
	span := now.Sub(was.at)
	if !known || was.at.IsZero() || span <= 0 || total < was.ioTime {
		return is // the first, or the counter has begun anew
	}
	share := min(1, float64(total-was.ioTime)/float64(span))
	keep := math.Exp(-float64(span) / float64(busySpan))
	is.busy = keep*was.busy + (1-keep)*share
	return is
}

// steady rounds to steps, and stays where it was told before unless it has moved
// by most of a step: a load between two steps would else be told anew every round.
func (m *meter) steady(pool volume.PoolName, percent float64) int {
	was := m.told[pool]
	if math.Abs(percent-float64(was)) < 0.8*busyStep {
		return was
	}
	return int(math.Round(percent/busyStep)) * busyStep
}
