package nodeagent_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A claim that is not bound yet when its volume is ready gets the event once it is.
func TestUndeleteOfWhatIsNotBoundYet(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.volume("data", volume.Retained, 10, withFS)
	pending := marked("data", func(o *corev1.PersistentVolume) { o.Spec.ClaimRef.UID = "" })
	r.api.put(pending)
	r.start()
	r.eventually(func() bool { return len(r.api.told("VolumeUndeleted")) == 1 }, "not told")
	r.eventually(func() bool { return r.api.volume("data").Annotations[pv.AnnotationUndelete] == "" }, "the mark stays")
	r.rounds(2)
	require.Len(t, r.api.told("VolumeUndeleted"), 1)
	bound := marked("data")
	r.claimOf(bound)
	r.api.with(func() {
		r.api.volumes["data"].Spec.ClaimRef = bound.Spec.ClaimRef
		r.api.changed("MODIFIED", r.api.volumes["data"])
	})
	r.eventually(func() bool { return len(r.api.told("VolumeUndeleted")) == 2 }, "the claim is not told")
	require.Contains(t, strings.Join(r.api.told("VolumeUndeleted"), "\n"), "PersistentVolumeClaim/data-data: volume flexlvm/data is ready again")
	r.rounds(2)
	require.Len(t, r.api.told("VolumeUndeleted"), 2, "once")
}

// A volume that is evicted between the inventory and its change is reported by the next round, which knows that it
// was evicted.
func TestUndeleteOfWhatIsEvictedInBetween(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.volume("data", volume.Unreferenced, 10, withFS)
	r.engine.with(func() {
		r.engine.fault = func(call string) error {
			if !strings.HasPrefix(call, "set flexlvm/data") {
				return nil
			}
			r.engine.volumes = slices.DeleteFunc(r.engine.volumes, func(v inventory.Volume) bool { return v.Name == "data" })
			return fmt.Errorf("%w: flexlvm/data", node.ErrNoVolume)
		}
	})
	r.api.put(marked("data"))
	r.start()
	r.eventually(func() bool {
		r.clock.pass(soon)
		return len(r.api.told("VolumeNotUndeleted")) > 0
	}, "no event")
	require.Len(t, r.engine.called("set "), 1, "it was tried while the inventory had it")
	require.Len(t, r.api.told("VolumeNotUndeleted"), 1)
	require.Contains(t, r.api.told("VolumeNotUndeleted")[0], "was evicted before it could be brought back")
}
