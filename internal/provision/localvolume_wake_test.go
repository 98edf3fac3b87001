package provision

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// The loop's own status writes do not wake it: a message that differs each time would keep it writing. Changes by
// others do.
func TestOwnStatusOfALocalVolumeWakesNobody(t *testing.T) {
	was := &flexlvmv1.LocalVolume{ObjectMeta: metav1.ObjectMeta{UID: "a", Generation: 1, ResourceVersion: "1"}}
	for name, c := range map[string]struct {
		change func(*flexlvmv1.LocalVolume)
		wakes  bool
	}{
		"status": {func(o *flexlvmv1.LocalVolume) {
			o.ResourceVersion, o.Status.Conditions = "2", []metav1.Condition{{Message: "it is 12:00:01"}}
		}, false},
		"spec":       {func(o *flexlvmv1.LocalVolume) { o.Generation++ }, true},
		"finalizers": {func(o *flexlvmv1.LocalVolume) { o.Finalizers = []string{"example.org/a"} }, true},
		"deletion":   {func(o *flexlvmv1.LocalVolume) { o.DeletionTimestamp = &metav1.Time{Time: time.Now()} }, true},
		"another":    {func(o *flexlvmv1.LocalVolume) { o.UID = "b" }, true},
	} {
		now := was.DeepCopy()
		c.change(now)
		require.Equal(t, c.wakes, changedBeyondStatus(was, now), name)
	}
}
