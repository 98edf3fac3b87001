package eviction

import (
	"fmt"
	"strings"
	"time"
)

// A Policy defines when volumes are evicted. The thresholds and ages have the same meaning as in kubelet's
// image garbage collection.
type Policy struct {
	// HighPercent is the use of a pool at which evictions start; 100 disables the thresholds.
	HighPercent int
	// LowPercent is the use at which evictions end.
	LowPercent int
	// MinAge is how long a volume must have been unreferenced before it may be evicted, unless its class has it
	// removed immediately.
	MinAge time.Duration
	// MaxAge is how long a volume may be unreferenced; 0 means no limit.
	MaxAge time.Duration
	// Headroom is kept free in each volume group in advance, by evicting unreferenced volumes that are old
	// enough.
	Headroom Headroom
	// EvictOrphans allows the eviction of volumes without a PersistentVolume, under pressure and when no
	// unreferenced volume is left.
	EvictOrphans bool
	// OrphanAge is the least time since an orphan was created or last used.
	OrphanAge time.Duration
	// OrphanShare is the percentage of the cluster's volumes on the node that may be evicted as orphans within
	// OrphanWindow, but at least one.
	OrphanShare int
	// ThinDataPercent and ThinMetadataPercent are the use of a thin pool that closes it
	// to new volumes; 100 closes it when it is full.
	ThinDataPercent     int
	ThinMetadataPercent int
}

// DefaultPolicy returns the policy of a daemon without flags.
func DefaultPolicy() Policy {
	return Policy{
		HighPercent: 85,
		LowPercent:  80,
		MinAge:      2 * time.Minute,
		Headroom:    HeadroomAuto,
		OrphanAge:   24 * time.Hour,
		OrphanShare: 10,

		ThinDataPercent:     80,
		ThinMetadataPercent: 80,
	}
}

// minOrphanWindow bounds the evictions of orphans if OrphanAge is short.
const minOrphanWindow = time.Hour

// OrphanWindow returns the time within which at most OrphanShare of the volumes may be evicted as orphans.
func (p Policy) OrphanWindow() time.Duration { return max(p.OrphanAge, minOrphanWindow) }

// Flags of the daemon that set a Policy.
const (
	flagHigh         = "--high-threshold-percent"
	flagLow          = "--low-threshold-percent"
	flagMinAge       = "--min-age"
	flagMaxAge       = "--max-age"
	flagHeadroom     = "--headroom"
	flagOrphanAge    = "--orphan-age"
	flagOrphanShare  = "--orphan-share-percent"
	flagThinData     = "--thin-data-watermark-percent"
	flagThinMetadata = "--thin-metadata-watermark-percent"
)

// Validate checks the policy. The error lists every wrong flag, its value, and valid values.
func (p Policy) Validate() error {
	wrong := p.wrongThresholds()
	if p.MinAge < 0 {
		wrong = append(wrong, fmt.Sprintf("%s %s: is negative; give 0 or more, such as 2m", flagMinAge, p.MinAge))
	}
	switch {
	case p.MaxAge < 0:
		wrong = append(wrong, fmt.Sprintf("%s %s: is negative; give 0 to keep volumes until their room is needed, or more, such as 168h", flagMaxAge, p.MaxAge))
	case p.MaxAge > 0 && p.MaxAge <= p.MinAge:
		wrong = append(wrong, fmt.Sprintf("%s %s: must be longer than %s, which is %s; make it longer, or 0 to keep volumes until their room is needed", flagMaxAge, p.MaxAge, flagMinAge, p.MinAge))
	}
	if p.OrphanAge < 0 {
		wrong = append(wrong, fmt.Sprintf("%s %s: is negative; give 0 or more, such as 24h", flagOrphanAge, p.OrphanAge))
	}
	if p.OrphanShare < 1 || p.OrphanShare > 100 {
		wrong = append(wrong, fmt.Sprintf("%s %d: is not a percentage; give 1 to 100, or leave --evict-orphans out to keep them all", flagOrphanShare, p.OrphanShare))
	}
	for _, w := range []struct {
		flag    string
		percent int
	}{{flagThinData, p.ThinDataPercent}, {flagThinMetadata, p.ThinMetadataPercent}} {
		if w.percent < 1 || w.percent > 100 {
			wrong = append(wrong, fmt.Sprintf("%s %d: is not a percentage; give 1 to 100", w.flag, w.percent))
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("check eviction policy: %s", strings.Join(wrong, "; "))
}

func (p Policy) wrongThresholds() (wrong []string) {
	for _, t := range []struct {
		flag    string
		percent int
	}{{flagHigh, p.HighPercent}, {flagLow, p.LowPercent}} {
		if t.percent < 0 || t.percent > 100 {
			wrong = append(wrong, fmt.Sprintf("%s %d: is not a percentage; give 0 to 100", t.flag, t.percent))
		}
	}
	if len(wrong) == 0 && p.LowPercent >= p.HighPercent {
		wrong = append(wrong, fmt.Sprintf("%s %d: must be less than %s, which is %d; lower the one or raise the other (%s 100 switches the thresholds off)",
			flagLow, p.LowPercent, flagHigh, p.HighPercent, flagHigh))
	}
	return wrong
}
