package nodeagent_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Evictions that nothing waits for are delayed until the starting pods run, but by no more than a minute.
func TestStartsComeBeforeHeadroom(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*rig){
		"a pod runs": func(r *rig) { r.pod("data-settled", corev1.PodRunning, true) },
		"a minute":   func(r *rig) { r.clock.pass(61 * time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.config.Policy.HighPercent = 100
			require.NoError(t, r.config.Policy.Headroom.Set("10Gi"))
			r.claimed("big", 90)
			r.volume("old", volume.Unreferenced, 5, evictiontest.LastUsed(9))
			r.pod("data-settled", corev1.PodPending, true)
			r.start()
			r.eventually(r.readyIs("Ready"), "not ready")
			r.rounds(3)
			require.Contains(t, r.engine.names(), "old unreferenced", "its removal competes with the pod")
			start(r)
			r.eventually(func() bool { return !slices.Contains(r.engine.names(), "old unreferenced") }, "it stays")
		})
	}
}
