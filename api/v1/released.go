package v1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A ReleasedVolume is one whose PersistentVolume was released. Its data is there until it is
// evicted.
type ReleasedVolume struct {
	// Pool that it lies in.
	Pool string `json:"pool"`
	// Name of the logical volume.
	Name string `json:"name"`
	// State is unreferenced or retained.
	State string `json:"state"`
	// Namespace that it belongs to.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Size that the user could write.
	Size resource.Quantity `json:"size"`
	// Room that its eviction gives back to its pool.
	Room resource.Quantity `json:"room"`
	// LastUsed is when it was last mounted or unmounted, as far as the node knows.
	// +optional
	LastUsed metav1.Time `json:"lastUsed,omitzero"`
	// Released is the time of its release.
	// +optional
	Released metav1.Time `json:"released,omitzero"`
	// EvictionOrder is its place among those of its pool that may be evicted, from 1; 0 if
	// it may not.
	// +optional
	EvictionOrder int32 `json:"evictionOrder,omitempty"`
	// Kept says in one word why it may not be evicted: TooYoung, InUse, Wanted, Problem or
	// Retained.
	// +optional
	Kept string `json:"kept,omitempty"`
}

// Reasons for which a released volume is not evicted.
const (
	// KeptTooYoung: it was released less than --min-age ago.
	KeptTooYoung = "TooYoung"
	// KeptInUse: its device is open, it is mounted, or snapshots depend on it.
	KeptInUse = "InUse"
	// KeptWanted: a PersistentVolume names it, or is to begin as a copy of it.
	KeptWanted = "Wanted"
	// KeptProblem: it, or its pool, has a problem.
	KeptProblem = "Problem"
	// KeptRetained: only a person can give it up.
	KeptRetained = "Retained"
)

// An EvictionPolicy is what the node daemon's flags say about evictions.
type EvictionPolicy struct {
	// HighThresholdPercent is the use of a pool that starts evicting; 100 never does.
	HighThresholdPercent int32 `json:"highThresholdPercent"`
	// LowThresholdPercent is the use at which evicting ends.
	LowThresholdPercent int32 `json:"lowThresholdPercent"`
	// MinAge is how long a volume is unreferenced before it may be evicted.
	MinAge metav1.Duration `json:"minAge"`
	// MaxAge is how long a volume may be unreferenced; 0 means no limit.
	MaxAge metav1.Duration `json:"maxAge"`
}
