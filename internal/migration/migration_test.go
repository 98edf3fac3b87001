package migration

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func quantity(text string) resource.Quantity { return resource.MustParse(text) }

// same fails the test unless a moved PersistentVolume equals the old one except for its driver.
func same(t *testing.T, before, after *corev1.PersistentVolume, door pv.Door) {
	t.Helper()
	require.NotNil(t, after)
	require.Equal(t, door, persistentvolume.DoorOf(after))
	require.NotEqual(t, before.UID, after.UID)
	require.Equal(t, before.Labels, after.Labels)
	annotations := map[string]string{}
	for k, v := range before.Annotations {
		if k != pv.AnnotationPreResizeCapacity {
			annotations[k] = v
		}
	}
	require.Equal(t, annotations, after.Annotations)
	require.ElementsMatch(t, before.Finalizers, after.Finalizers)
	was, is := before.Spec.DeepCopy(), after.Spec.DeepCopy()
	require.Equal(t, "1Gi", is.Capacity.Storage().String())
	was.Capacity, is.Capacity = nil, nil // equal quantities may differ in their internal form
	was.PersistentVolumeSource, is.PersistentVolumeSource = corev1.PersistentVolumeSource{}, corev1.PersistentVolumeSource{}
	require.Equal(t, was, is)
	require.Equal(t, persistentvolume.Options(before), persistentvolume.Options(after))
}

func TestMoveAndBack(t *testing.T) {
	w := newWorld(t, pv.Flex)
	first := w.volume("pvc-1")
	require.NoError(t, w.move(pv.CSI))
	second := w.volume("pvc-1")
	same(t, first, second, pv.CSI)
	require.Equal(t, "flexlvm/pvc-1", second.Spec.CSI.VolumeHandle)
	require.Equal(t, key.Namespace, second.Spec.CSI.VolumeAttributes[pv.AttributeNamespace])
	require.Len(t, w.volumes(), 1)
	claim := w.claim()
	require.Equal(t, corev1.ClaimBound, claim.Status.Phase)
	require.Equal(t, types.UID("uid-of-claim"), claim.UID)
	require.Equal(t, "1Gi", claim.Status.Capacity.Storage().String())

	writes := w.writes
	require.NoError(t, w.move(pv.CSI))
	require.Equal(t, writes, w.writes, "there is nothing to do")

	require.NoError(t, w.move(pv.Flex))
	same(t, second, w.volume("pvc-1"), pv.Flex)
	require.Equal(t, first.Spec.PersistentVolumeSource, w.volume("pvc-1").Spec.PersistentVolumeSource)
}

// A move is killed after each write and called again, perhaps for the other driver: nothing is lost. At
// each instant the daemon and the provisioner treat the volume as wanted (world.kept).
func TestMoveKilledAfterEachWrite(t *testing.T) {
	whole := newWorld(t, pv.Flex)
	require.NoError(t, whole.move(pv.CSI))
	require.GreaterOrEqual(t, whole.writes, 8)
	for _, then := range []pv.Door{pv.CSI, pv.Flex} {
		for at := 1; at <= whole.writes; at++ {
			for _, away := range []bool{false, true} {
				if away && then == pv.Flex {
					continue
				}
				w := newWorld(t, pv.Flex)
				first := w.volume("pvc-1")
				w.killAt, w.away = at, away
				_ = (&Mover{Client: w.Client, Timeout: pause / 2}).Move(t.Context(), key, pv.CSI) // killed, or waiting for Kubernetes
				w.killAt, w.away = 0, false
				w.kubernetes()
				w.kept()
				require.NoError(t, w.move(then), "killed after write %d", at)
				require.Len(t, w.volumes(), 1)
				after := w.volume("pvc-1")
				require.Equal(t, then, persistentvolume.DoorOf(after))
				require.Equal(t, corev1.PersistentVolumeReclaimDelete, after.Spec.PersistentVolumeReclaimPolicy)
				require.Equal(t, corev1.ClaimBound, w.claim().Status.Phase)
				if then == pv.CSI {
					same(t, first, after, pv.CSI)
				}
			}
		}
	}
}

// Another client changes the PersistentVolume before any one of the writes: its change is in the new
// PersistentVolume, unless the old one was already gone.
func TestMoveWhileOthersWrite(t *testing.T) {
	whole := newWorld(t, pv.Flex)
	require.NoError(t, whole.move(pv.CSI))
	times := 0
	for at := 1; at <= whole.writes; at++ {
		w := newWorld(t, pv.Flex)
		written := false
		w.between = func(write int) {
			if w.volume("pvc-1") != nil && write == at {
				w.change("pvc-1", func(p *corev1.PersistentVolume) {
					p.Annotations[pv.AnnotationIOLimits] = "riops=7"
					p.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: quantity("3Gi")}
				})
				written = true
			}
		}
		require.NoError(t, w.move(pv.CSI))
		after := w.volume("pvc-1")
		if written {
			times++
			require.Equal(t, "riops=7", after.Annotations[pv.AnnotationIOLimits], "before write %d", at)
			require.Equal(t, "3Gi", after.Spec.Capacity.Storage().String())
		}
	}
	require.GreaterOrEqual(t, times, whole.writes-1, "it is gone before one of them")
}

// The reclaim policy is set to Retain before one of a move's writes: the new PersistentVolume has it,
// too.
func TestRetainDuringMove(t *testing.T) {
	retained := func(p *corev1.PersistentVolume) {
		p.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	}
	for at := 1; ; at++ {
		w, said := newWorld(t, pv.Flex), false
		w.between = func(write int) {
			p := w.volume("pvc-1")
			if said = write == at && p != nil && p.UID == "uid-of-old" && p.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete; said {
				w.change("pvc-1", retained)
				w.between = nil
			}
		}
		require.NoError(t, w.move(pv.CSI))
		if !said {
			require.Greater(t, at, 2)
			return
		}
		after := w.volume("pvc-1")
		require.Equal(t, corev1.PersistentVolumeReclaimRetain, after.Spec.PersistentVolumeReclaimPolicy, "before write %d", at)
		require.NotContains(t, after.Annotations, pv.AnnotationRetainedFor)
	}
}

// A growth that the node has not yet done stays pending after the move.
func TestMoveDuringGrowth(t *testing.T) {
	w := newWorld(t, pv.Flex, func(p *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) {
		p.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: quantity("2Gi")}
		p.Annotations[pv.AnnotationPreResizeCapacity] = "1Gi"
	})
	require.NoError(t, w.move(pv.CSI))
	require.Equal(t, "2Gi", w.volume("pvc-1").Spec.Capacity.Storage().String())
	require.Equal(t, "1Gi", w.claim().Status.Capacity.Storage().String())
	require.Equal(t, "1Gi", w.volume("pvc-1").Annotations[pv.AnnotationPreResizeCapacity])
}

// A VolumeAttributesClass is set while a volume moves to FlexVolume, which has none: its limits stay,
// and the move back to CSI restores the class.
func TestAttributesClassComesDuringMove(t *testing.T) {
	const class, limits = "fast", "wbps=1Mi"
	come := 0
	for at := 1; ; at++ {
		w, comes := newWorld(t, pv.CSI), false
		w.between = func(write int) {
			if p := w.volume("pvc-1"); write == at && p != nil && p.UID == "uid-of-old" {
				comes = true
				w.change("pvc-1", func(p *corev1.PersistentVolume) {
					p.Spec.VolumeAttributesClassName = new(class)
					p.Annotations[pv.AnnotationIOLimits] = limits
				})
				w.current(class)
			}
		}
		require.NoError(t, w.move(pv.Flex))
		if w.writes < at {
			require.Greater(t, come, 2)
			return
		}
		if !comes {
			continue
		}
		w.between = nil
		there := w.volume("pvc-1")
		require.Equal(t, pv.Flex, persistentvolume.DoorOf(there))
		require.Nil(t, there.Spec.VolumeAttributesClassName)
		require.Equal(t, limits, there.Annotations[pv.AnnotationIOLimits], "before write %d", at)
		come++
		require.NoError(t, w.move(pv.CSI))
		require.Equal(t, new(class), w.volume("pvc-1").Spec.VolumeAttributesClassName, "before write %d", at)
		require.Equal(t, limits, w.volume("pvc-1").Annotations[pv.AnnotationIOLimits])
	}
}

func podOf(phase corev1.PodPhase, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "db-0"},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: key.Name},
		}}}},
		Status: corev1.PodStatus{Phase: phase},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func notScheduled(reason string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: reason}}
	}
}

func TestPods(t *testing.T) {
	here := func(p *corev1.Pod) { p.Spec.NodeName = "node1" }
	other := func(p *corev1.Pod) { p.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = "other" }
	for name, tt := range map[string]struct {
		pod  *corev1.Pod
		stop bool
	}{
		"runs":                    {podOf(corev1.PodRunning, here), true},
		"new":                     {podOf(corev1.PodPending), true},
		"scheduled":               {podOf(corev1.PodPending, here), true},
		"ended":                   {podOf(corev1.PodSucceeded, here), false},
		"failed":                  {podOf(corev1.PodFailed, here), false},
		"finds no node":           {podOf(corev1.PodPending, notScheduled(corev1.PodReasonUnschedulable)), false},
		"has gates":               {podOf(corev1.PodPending, notScheduled(corev1.PodReasonSchedulingGated)), false},
		"found none, has one now": {podOf(corev1.PodPending, notScheduled(corev1.PodReasonUnschedulable), here), true},
		"of another claim":        {podOf(corev1.PodRunning, here, other), false},
		"generic ephemeral volume": {podOf(corev1.PodRunning, here, func(p *corev1.Pod) {
			p.Name, p.Spec.Volumes = "da", []corev1.Volume{{Name: "ta", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
		}), false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, pv.Flex)
			w.put(tt.pod)
			err := w.move(pv.CSI)
			if !tt.stop {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, ErrInUse)
			require.ErrorContains(t, err, "pod db-0 uses claim shop/data")
			require.Zero(t, w.writes)
		})
	}
}

// A pod that starts during a move stops it while the old PersistentVolume still exists.
func TestPodInTheMiddle(t *testing.T) {
	w := newWorld(t, pv.Flex)
	w.between = func(int) {
		if p := w.volume("pvc-1"); p != nil && p.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain && w.volume("pvc-1").UID == "uid-of-old" {
			w.between = nil
			w.put(podOf(corev1.PodRunning))
		}
	}
	require.ErrorIs(t, w.move(pv.CSI), ErrInUse)
	require.NotNil(t, w.volume("pvc-1").DeletionTimestamp)
	require.Equal(t, corev1.VolumeBound, w.volume("pvc-1").Status.Phase)
	require.NoError(t, w.raw.Delete(t.Context(), podOf(corev1.PodRunning)))
	require.NoError(t, w.move(pv.CSI))
	require.Len(t, w.volumes(), 1)
}

func TestWhatDoesNotMove(t *testing.T) {
	type objects = func(*corev1.PersistentVolume, *corev1.PersistentVolumeClaim)
	for name, tt := range map[string]struct {
		from   pv.Door
		change objects
		says   string
	}{
		"no PersistentVolume yet": {pv.Flex, func(_ *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "" }, "has no PersistentVolume yet"},
		"not bound":               {pv.Flex, func(_ *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimLost }, "they can move only while they are bound to each other"},
		"lost":                    {pv.Flex, func(_ *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "pvc-2" }, "has lost its PersistentVolume pvc-2"},
		"another's": {pv.Flex, func(p *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) {
			p.Spec.FlexVolume.Driver = "example.org/disk"
		}, "does not belong to flexlvm"},
		"of a dataset": {pv.Flex, func(p *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) {
			p.Spec.FlexVolume.Options[volume.OptionKind] = string(volume.Dataset)
		}, "is a replica of a dataset"},
		"for readers": {pv.Flex, func(p *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) {
			p.Spec.FlexVolume.Options[volume.OptionReadOnly] = "true"
		}, "is for the readers of a dataset"},
		"mount options": {pv.CSI, func(p *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) {
			p.Spec.MountOptions = []string{"noatime"}
		}, "FlexVolumes do not support"},
		"a device": {pv.CSI, func(p *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) {
			p.Spec.CSI.VolumeAttributes[volume.OptionVolumeMode] = volume.ModeBlock
		}, "has volumeMode Block"},
		"one pod alone": {pv.CSI, func(p *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) {
			p.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
		}, "FlexVolumes do not support"},
		"class of attributes": {pv.CSI, func(p *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) {
			p.Spec.VolumeAttributesClassName = new("fast")
		}, "has the VolumeAttributesClass fast, which FlexVolumes do not support"},
		"somebody's finalizer": {pv.Flex, func(p *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) {
			p.Finalizers = append(p.Finalizers, "example.org/hold")
		}, "has the finalizer example.org/hold"},
		"no CSI driver": {pv.Flex, func(p *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) {
			p.Labels[pv.LabelNode] = "node2"
		}, "is not registered with the kubelet of node node2"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tt.from, tt.change)
			to := pv.CSI
			if tt.from == pv.CSI {
				to = pv.Flex
			}
			require.ErrorContains(t, w.move(to), tt.says)
			require.Zero(t, w.writes)
		})
	}
}

// A placeholder's record is used only for its own claim and volume. A user who may only create
// PersistentVolumes of flexlvm gains no others by a forged one.
func TestForgedPlaceholders(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*corev1.PersistentVolume)
		says   string
	}{
		"no record": {func(p *corev1.PersistentVolume) { p.Annotations = nil }, "is not a placeholder; delete it, if it is not needed"},
		"not JSON":  {func(p *corev1.PersistentVolume) { p.Annotations[pv.AnnotationReplaces] = "{" }, "read annotation"},
		"another claim's": {func(p *corev1.PersistentVolume) {
			p.Annotations[pv.AnnotationReplaces] = `{"name":"pvc-1","claimUID":"x"}`
		}, "is the placeholder of an earlier claim"},
		"another's name": {func(p *corev1.PersistentVolume) {
			p.Annotations[pv.AnnotationReplaces] = `{"name":"pvc-2","claimUID":"uid-of-claim"}`
		}, "is the placeholder of PersistentVolume pvc-2"},
		"no policy": {func(p *corev1.PersistentVolume) {
			p.Annotations[pv.AnnotationReplaces] = `{"name":"pvc-1","claimUID":"uid-of-claim","reclaimPolicy":"Recycle"}`
		}, "has the reclaim policy \"Recycle\""},
		"a path of the node": {func(p *corev1.PersistentVolume) {
			p.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}
		}, "is not a placeholder; delete it, if it is not needed"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, pv.Flex)
			w.killAt = 1
			require.ErrorIs(t, w.move(pv.CSI), errKilled)
			w.change("pvc-1-door", tt.change)
			w.killAt = 0
			require.ErrorContains(t, w.move(pv.CSI), tt.says)
			require.Equal(t, 1, w.writes)
			require.Nil(t, w.volume("pvc-1").DeletionTimestamp)
		})
	}
}

// The claim is deleted after each of the writes, also while its PersistentVolume does not exist: the
// volume is kept.
func TestClaimDeletedInTheMiddle(t *testing.T) {
	away := 0
	for at := 1; ; at++ {
		w := newWorld(t, pv.Flex)
		w.killAt = at
		if w.move(pv.CSI) == nil {
			require.Positive(t, away)
			return
		}
		if w.volume("pvc-1") == nil {
			away++
		}
		if p := w.volume("pvc-1-door"); p == nil || p.Labels[pv.LabelNode] == "" {
			continue // it has moved, and the volume is deleted with its claim as the class's reclaim policy requires
		}
		w.killAt, w.deleted = 0, true
		require.NoError(t, w.raw.Delete(t.Context(), w.claim()))
		w.kubernetes()
		w.kept()
		require.ErrorContains(t, w.move(pv.CSI), "read claim shop/data")
	}
}

func TestCheckWritesNothing(t *testing.T) {
	w := newWorld(t, pv.Flex)
	m := &Mover{Client: w.Client}
	doing, err := m.Check(t.Context(), key, pv.CSI)
	require.NoError(t, err)
	require.Equal(t, "create the placeholder PersistentVolume pvc-1-door", doing)
	doing, err = m.Check(t.Context(), key, pv.Flex)
	require.NoError(t, err)
	require.Empty(t, doing)
	require.Zero(t, w.writes)
}
