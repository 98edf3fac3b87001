package nodeagent

import (
	"math"
	"time"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	// busySpan is the time over which a pool's load is averaged, so that a short burst does not keep volumes
	// away.
	busySpan = 5 * time.Minute
	// busyStep is the step, in per cent, in which the load is reported, so that it does not change all the
	// time.
	busyStep = 10
)

// A diskLoad measures how busy the disks of pools are: the share of time in which a device has requests, as an
// exponential moving average. It belongs to the goroutine of the rounds.
type diskLoad struct {
	// ioTime returns how long a device has been busy since some instant.
	ioTime   func(device string) (time.Duration, error)
	devices  map[string]sample
	reported map[volume.PoolName]int
}

type sample struct {
	at     time.Time
	ioTime time.Duration
	busy   float64 // 0 to 1
}

func newDiskLoad(ioTime func(string) (time.Duration, error)) *diskLoad {
	return &diskLoad{ioTime: ioTime, devices: map[string]sample{}, reported: map[volume.PoolName]int{}}
}

// measure returns the load of each pool in per cent, that of its busiest device. A device that cannot be read
// counts as idle.
func (l *diskLoad) measure(now time.Time, pools []inventory.Pool) map[volume.PoolName]int {
	if l.ioTime == nil {
		return nil
	}
	seen := map[string]sample{}
	out := map[volume.PoolName]int{}
	for _, p := range pools {
		busiest := 0.0
		for _, device := range p.Devices {
			s, known := seen[device]
			if !known {
				s = l.sample(now, device)
				seen[device] = s
			}
			busiest = max(busiest, s.busy)
		}
		out[p.Name] = l.quantizeLoad(p.Name, 100*busiest)
	}
	l.devices, l.reported = seen, out
	return out
}

func (l *diskLoad) sample(now time.Time, device string) sample {
	total, err := l.ioTime(device)
	if err != nil {
		return sample{}
	}
	was, known := l.devices[device]
	is := sample{at: now, ioTime: total, busy: was.busy}
	span := now.Sub(was.at)
	if !known || was.at.IsZero() || span <= 0 || total < was.ioTime {
		return is // the first sample, or the counter was reset
	}
	share := min(1, float64(total-was.ioTime)/float64(span))
	keep := math.Exp(-float64(span) / float64(busySpan))
	is.busy = keep*was.busy + (1-keep)*share
	return is
}

// quantizeLoad rounds to steps. The last value stays unless the load has moved by most of a step, because a load
// between two steps would be reported again every round.
func (l *diskLoad) quantizeLoad(pool volume.PoolName, percent float64) int {
	was := l.reported[pool]
	if math.Abs(percent-float64(was)) < 0.8*busyStep {
		return was
	}
	return int(math.Round(percent/busyStep)) * busyStep
}
