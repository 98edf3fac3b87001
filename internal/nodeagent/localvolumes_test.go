package nodeagent_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func pvDeclared(o *corev1.PersistentVolume) {
	o.Annotations[pv.AnnotationDeclared] = "team/data"
	o.Status.Phase = corev1.VolumeAvailable
}

// A declared volume is created once, before its claim exists. The NodeStorage reports it, or why it was not created.
func TestDeclaredVolumeIsMadeAhead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.engine.with(func() {
		r.engine.fault = func(call string) error {
			if strings.HasPrefix(call, "create ahead") {
				return errors.New("LVM hangs")
			}
			return nil
		}
	})
	r.api.put(object("data", 10, pvDeclared))
	r.start()
	says := func(want flexlvmv1.DeclaredVolume) func() bool {
		return func() bool {
			all := r.status().DeclaredVolumes
			return len(all) == 1 && all[0] == want
		}
	}
	r.eventually(says(flexlvmv1.DeclaredVolume{Name: "data", State: flexlvmv1.DeclaredWaiting, Message: "LVM hangs"}), "%v", r.status().DeclaredVolumes)
	r.eventually(func() bool { return len(r.api.told("VolumeNotMade")) == 1 }, "not told")
	r.engine.with(func() { r.engine.fault = nil })
	r.clock.pass(soon)
	r.eventually(says(flexlvmv1.DeclaredVolume{Name: "data", State: flexlvmv1.DeclaredMade}), "%v", r.status().DeclaredVolumes)
	r.toldNoMore("VolumeMade")
	require.Len(t, r.engine.called("create ahead flexlvm/data"), 2, "one has failed")
	require.Len(t, r.api.told("VolumeMade"), 1)
}

// A declared volume that is deleted before its turn is not created.
func TestDeclaredVolumeThatIsDeletedMeanwhile(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	asked := make(chan struct{}, 100)
	r.engine.beforeWanted = func() {
		r.api.with(func() { delete(r.api.volumes, "data") })
		asked <- struct{}{}
	}
	r.api.put(object("data", 10, pvDeclared))
	r.start()
	<-asked
	r.rounds(2)
	require.Empty(t, r.engine.called("create ahead"))
	require.Empty(t, r.api.told("VolumeNotMade"))
}

// A declared volume of a volume group that was replaced is not created, and the NodeStorage says so, whether or not
// the volume would be created ahead.
func TestDeclaredVolumeOfAReplacedGroup(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	elsewhere := func(o *corev1.PersistentVolume) {
		o.Spec.FlexVolume.Options[volume.OptionGroupUUID] = "pVk3yn-0ndM-3Dn0-V4cB-Kj3D-f2pY-Xa9Qz1"
	}
	r.api.put(object("data", 10, pvDeclared, elsewhere))
	r.start()
	r.rounds(2)
	all := r.status().DeclaredVolumes
	require.Len(t, all, 1)
	require.Equal(t, flexlvmv1.DeclaredWaiting, all[0].State)
	require.Contains(t, all[0].Message, "was created for volume group flexlvm with UUID pVk3yn-")
	require.Contains(t, all[0].Message, "delete its LocalVolume")
	require.Empty(t, r.engine.called("create ahead"))
}
