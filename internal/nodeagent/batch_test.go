package nodeagent_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// The evictions that a plan makes from one group are removed together, except for the very first one. A volume that
// has to be wiped is removed alone, and a removal that fails does not stop the others.
func TestEvictionsOfAPlanGoTogether(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("big", 30)
	for i := range 6 {
		r.volume(fmt.Sprintf("old-%d", i), volume.Unreferenced, 5, evictiontest.LastUsed(float64(9+i)))
	}
	r.volume("wiped", volume.Unreferenced, 5, evictiontest.LastUsed(20), func(v *inventory.Volume) { v.Wipe = volume.WipeZero })
	r.api.put(object("new", 60))
	r.engine.with(func() {
		r.engine.fault = func(call string) error {
			if strings.HasPrefix(call, "remove flexlvm/old-3") {
				return errors.New("odd")
			}
			return nil
		}
	})
	r.start()
	r.eventually(func() bool {
		r.clock.pass(time.Second) // another volume is evicted instead of one that has failed twice
		return slices.Equal(r.engine.names(), []string{"big ready", "old-3 unreferenced", "settled ready"})
	}, "left: %v", r.engine.names())
	r.requireBatchAfterOne()
	r.eventually(func() bool { return len(r.api.told("VolumeEvicted")) == 6 }, "told: %v", r.api.told("VolumeEvicted"))
	r.eventually(func() bool { return len(r.api.told("VolumeNotEvicted")) == 1 }, "told: %v", r.api.told("VolumeNotEvicted"))
}

// requireBatchAfterOne fails unless one of the volumes old-… was removed alone first, and several together later. It
// does not check how many: a round that runs during the first removal adds another single one.
func (r *rig) requireBatchAfterOne() {
	r.t.Helper()
	calls := slices.DeleteFunc(r.engine.called(""), func(call string) bool {
		return !strings.HasPrefix(call, "together") && !strings.HasPrefix(call, "remove flexlvm/old-")
	})
	require.NotEmpty(r.t, calls)
	require.NotContains(r.t, calls[0], "together")
	require.NotEmpty(r.t, r.engine.called("together"))
}
