package nodeagent_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// The report has the findings of the node's checks, up to a limit, without the checks that found nothing.
func TestExaminationIsReported(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.engine.pools = append(r.engine.pools, inventory.Pool{Name: "fast", UUID: "u", LVs: 1}, inventory.Pool{Name: "fast/thin", UUID: "v", Thin: &inventory.ThinPool{GroupUUID: "u"}},
		inventory.Pool{Name: "rl", UUID: "w", LVs: 3}) // the operating system's
	var asked atomic.Value
	r.config.Examine = func(_ context.Context, groups []volume.Group) []flexlvmv1.Check {
		asked.Store(fmt.Sprint(groups))
		out := []flexlvmv1.Check{{Level: "FAIL", Check: "driver", Detail: strings.Repeat("x", 5000), Do: "install it"}}
		for range 50 {
			out = append(out, flexlvmv1.Check{Level: "WARN", Check: "volume", Detail: "half made"}, flexlvmv1.Check{Level: "OK", Check: "kernel", Detail: "6.1"})
		}
		return out
	}
	r.start()
	r.eventually(func() bool { return r.status().CheckCount == 101 }, "not examined")
	require.Equal(t, "[fast flexlvm]", asked.Load(), "each group once, and only groups that flexlvm uses")
	status := r.status()
	require.Len(t, status.Checks, 20)
	require.Equal(t, "FAIL", status.Checks[0].Level)
	require.Less(t, len(status.Checks[0].Detail), 400)
	require.Equal(t, flexlvmv1.Check{Level: "WARN", Check: "volume", Detail: "half made"}, status.Checks[19])
	require.False(t, status.CheckedTime.IsZero())

	r.engine.with(func() { r.engine.pools = r.engine.pools[:1] })
	r.eventually(func() bool { return asked.Load() == "[flexlvm]" }, "not examined when a group has gone")

	r.api.put(object("hidden", 5, func(pv *corev1.PersistentVolume) { pv.Spec.FlexVolume.Options[volume.OptionGroup] = "hidden" }))
	r.eventually(func() bool { return asked.Load() == "[flexlvm hidden]" }, "a group that LVM does not see is not examined, and nobody says why")
}
