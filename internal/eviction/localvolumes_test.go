package eviction_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Only the volume of an unbound PersistentVolume that is not given up is created ahead.
func TestLocalVolumesToCreate(t *testing.T) {
	declared := func(c *persistentvolume.Volume) { c.Declared = true }
	available := evictiontest.Phase(corev1.VolumeAvailable)
	for name, tt := range map[string]struct {
		state volume.State // of its volume; empty: no volume
		claim []func(*persistentvolume.Volume)
		made  bool
	}{
		"not made":                  {"", []func(*persistentvolume.Volume){declared, available}, true},
		"half made":                 {volume.Creating, []func(*persistentvolume.Volume){declared, available}, true},
		"made":                      {volume.Ready, []func(*persistentvolume.Volume){declared, available}, false},
		"given up":                  {volume.Unreferenced, []func(*persistentvolume.Volume){declared, available}, false},
		"not declared":              {"", []func(*persistentvolume.Volume){available}, false},
		"a claim is bound to it":    {"", []func(*persistentvolume.Volume){declared, evictiontest.Phase(corev1.VolumeBound)}, false},
		"released":                  {"", []func(*persistentvolume.Volume){declared, evictiontest.Phase(corev1.VolumeReleased)}, false},
		"being deleted":             {"", []func(*persistentvolume.Volume){declared, available, evictiontest.Deleting}, false},
		"of another cluster":        {"", []func(*persistentvolume.Volume){declared, available, evictiontest.OtherCluster}, false},
		"of another group":          {"", []func(*persistentvolume.Volume){declared, available, evictiontest.OtherGroup}, false},
		"its first mount's":         {"", []func(*persistentvolume.Volume){declared, available, func(c *persistentvolume.Volume) { c.Encrypted = true }}, false},
		"it is to be a copy":        {"", []func(*persistentvolume.Volume){declared, available, evictiontest.CopyOf("other")}, false},
		"it was brought back":       {"", []func(*persistentvolume.Volume){declared, available, func(c *persistentvolume.Volume) { c.Undelete = true }}, false},
		"its object is made anew":   {"", []func(*persistentvolume.Volume){declared, available, func(c *persistentvolume.Volume) { c.Placeholder = true }}, false},
		"its object is of no state": {"", []func(*persistentvolume.Volume){declared, evictiontest.Phase(corev1.VolumePending)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := evictiontest.New()
			if tt.state != "" {
				s.Volume("data", tt.state, 10)
			}
			s.PersistentVolume("data", 10, tt.claim...)
			require.Equal(t, tt.made, len(eviction.LocalVolumesToCreate(s.View)) == 1)
		})
	}
}
