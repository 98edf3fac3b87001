package nodeagent_test

import (
	"net/http"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A volume was grown, but its PersistentVolume does not show that. The PersistentVolume is charged for what the
// volume takes as soon as the API server accepts the patch. After that nothing more is written.
func TestGrownVolumeIsCharged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("data", 10)
	r.claimed("old", 10, func(o *corev1.PersistentVolume) { delete(o.Annotations, pv.AnnotationCharged) })
	r.engine.with(func() {
		for i := range r.engine.volumes {
			if v := &r.engine.volumes[i]; v.Name != "settled" {
				v.Allocated += 20 * volume.GiB
				r.engine.pools[0].Free -= 20 * volume.GiB
			}
		}
	})
	r.api.fail(http.StatusServiceUnavailable, "patch persistentvolumes")
	r.start()
	r.eventually(func() bool { return r.api.requests("patch persistentvolumes") > 0 }, "nothing is charged")
	r.api.mend()
	charged := func(name string) string { return r.api.volume(name).Annotations[pv.AnnotationCharged] }
	r.eventually(func() bool {
		r.clock.pass(soon)
		return charged("data") == strconv.FormatInt(int64(30*volume.GiB), 10)
	}, "charged: %s", charged("data"))
	written := r.api.requests("patch persistentvolumes")
	r.rounds(2)
	require.Equal(t, written, r.api.requests("patch persistentvolumes"))
	require.Empty(t, charged("old"), "it is charged by its size")
	require.Equal(t, strconv.FormatInt(int64(volume.GiB), 10), charged("settled"))
}
