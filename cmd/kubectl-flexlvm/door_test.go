package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/flexlvm/flexlvm/internal/migration"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// boundClaim returns a claim of class flexlvm and its PersistentVolume of the given driver.
func boundClaim(name string, door pv.Door) []client.Object {
	object := persistentvolume.New(pv.Description{
		Name: "pvc-" + name, Node: "node1", Hostname: "node1", Door: door, Charged: volume.GiB,
		Spec: volume.Spec{Group: "flexlvm", Name: volume.Name("pvc-" + name), Size: volume.GiB, Kind: volume.Claim, Layout: volume.Linear, Namespace: "shop"},
	}, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, corev1.PersistentVolumeReclaimDelete)
	object.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "shop", Name: name, UID: types.UID(name)}
	object.Status.Phase = corev1.VolumeBound
	class := "flexlvm"
	return []client.Object{object, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: object.Name, StorageClassName: &class},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: object.Spec.Capacity},
	}}
}

func TestDoorOfAClass(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(scheme))
	require.NoError(t, storagev1.AddToScheme(scheme))
	objects := append(boundClaim("old", pv.CSI), boundClaim("used", pv.CSI)...)
	objects = append(append(objects, boundClaim("there", pv.Flex)...), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db-0"},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "used"},
		}}}},
	})
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()

	o := doorOptions{door: pv.Flex, class: "flexlvm", dryRun: true}
	claims, err := o.claims(t.Context(), c, &session{}, nil)
	require.NoError(t, err)
	var out bytes.Buffer
	cmd := command()
	cmd.SetOut(&out)
	cmd.SetContext(t.Context())
	require.EqualError(t, o.moveAll(cmd, &migration.Mover{Client: c}, claims), "1 of 3 claims not moved")
	require.Equal(t, `shop/old: would move to driver flex; first step: create the placeholder PersistentVolume pvc-old-door
shop/there: already uses driver flex
shop/used: not moved: in use: pod db-0 uses claim shop/used; delete it, or keep it from starting, and run the same command again
`, out.String())

	// kube-controller-manager does not run here, so the move stops after its first step.
	out.Reset()
	o.dryRun = false
	require.Error(t, o.moveAll(cmd, &migration.Mover{Client: c, Timeout: 10 * time.Millisecond}, claims[:1]))
	require.Contains(t, out.String(), "its next step is: wait until the placeholder's phase is Released; run the same command again to continue")

	o.class = "other"
	claims, err = o.claims(t.Context(), c, &session{}, nil)
	require.NoError(t, err)
	require.Empty(t, claims)
}

func TestDoorArguments(t *testing.T) {
	for _, tt := range []struct {
		args []string
		says string
	}{
		{[]string{"nfs", "data"}, "it is one of flex, csi"},
		{[]string{"csi"}, "give either the names of claims or --all-of-class"},
		{[]string{"csi", "data", "--all-of-class", "fast"}, "give either the names of claims or --all-of-class"},
	} {
		cmd := command()
		cmd.SetArgs(append([]string{"door"}, tt.args...))
		require.ErrorContains(t, cmd.Execute(), tt.says)
	}
}
