//go:build cluster

package dataset_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/test/await"
)

// lent is a volume that reads volume a of VolumeManager v in namespace owners.
const lent = `{id: b, sourceType: Shared, accessMode: ReadOnlyMany, capacity: 1Gi, labels: {k: v}, options: {namespace: owners, name: v, volume: a}}`

// testShared checks that a named namespace reads through its own claim, and that another is refused and
// learns nothing. After the offer is withdrawn no further pod can start, and running pods keep their
// volume.
func (k *kubelets) testShared(t *testing.T) {
	owners, team, thief := k.namespace(t, "owners"), k.namespace(t, "guests"), k.namespace(t, "thief")
	offer := func(to string) { owners.make("v", with(s3, "replicas: 1", "replicas: 1, sharedWith: ["+to+"]")) }
	offer("guests")
	owners.status("v", flexlvmv1.StateRunning, "success")
	team.make("g", lent)
	thief.make("g", lent)
	team.status("g", flexlvmv1.StateRunning, "success")
	thief.status("g", flexlvmv1.StateFailed, `VolumeManager owners/v offers no volume "a" to namespace thief: its owner has to name this namespace in the volume's sharedWith`)
	require.Empty(t, thief.claims())
	k.testSharedIsNotStolen(t, team, thief)

	// A pod of the other namespace is scheduled to a node with the data.
	reader := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: team.name, Name: "reader"}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "main", Image: "none"}},
		Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "g-b"},
		}}},
	}}
	require.NoError(t, k.client.Create(t.Context(), reader.DeepCopy()))
	require.Contains(t, owners.labelled("v"), team.nodeOf("reader"))

	offer("")
	team.status("g", flexlvmv1.StateFailed, "to namespace guests: its owner has to name this namespace in the volume's sharedWith; running pods keep it, and no new pod can start")
	await.Until(t, longest, func() string { // the pod still protects it
		return await.Missing(team.claims()["g-b"].DeletionTimestamp != nil, "nobody has deleted the claim")
	})
	var late *corev1.Pod
	makeLate := func() {
		late = reader.DeepCopy()
		late.Name = "late"
		require.NoError(t, k.client.Create(t.Context(), late))
	}
	makeLate()
	await.Until(t, longest, func() string {
		require.NoError(t, k.client.Get(t.Context(), team.key("late"), late))
		if late.Spec.NodeName != "" { // the scheduler had not yet seen the claim's deletion
			k.kubectl(t, "delete", "pod", "late", "-n", team.name, "--force", "--grace-period=0")
			makeLate()
			return "the scheduler placed a pod"
		}
		for _, c := range late.Status.Conditions {
			if c.Type == corev1.PodScheduled && strings.Contains(c.Message, "is being deleted") {
				return ""
			}
		}
		return "the scheduler does not say that the claim goes"
	})
	require.Empty(t, late.Spec.NodeName)

	// The owner's data stays as long as that pod may read it.
	owners.patch("v", `{"spec":{"state":"Completed"}}`)
	await.Until(t, longest, func() string {
		got := owners.get("v").Status
		return await.Missing(len(got.Volumes) == 1 && got.Volumes[0].Message == "is released as soon as no pod of another namespace uses it any more, by claim guests/g-b", "%+v", got)
	})
	require.Contains(t, owners.claims(), "v-a-0")
	k.kubectl(t, "delete", "pod", "--all", "-n", team.name, "--force", "--grace-period=0")
	owners.status("v", flexlvmv1.StateCompleted, "")
	require.Empty(t, team.claims())
	for _, s := range []*space{owners, team, thief} {
		k.kubectl(t, "delete", "vm", "--all", "-n", s.name, "--timeout=8m")
		s.nothingLeft()
	}
}

// testSharedIsNotStolen checks that neither a user's own claim nor the provisioner's token gives access
// to another namespace's data.
func (k *kubelets) testSharedIsNotStolen(t *testing.T, team, thief *space) {
	t.Helper()
	volume := &corev1.PersistentVolume{}
	require.NoError(t, k.client.Get(t.Context(), client.ObjectKey{Name: team.claims()["g-b"].Spec.VolumeName}, volume))
	require.NotEmpty(t, volume.Labels[replica.LabelShared])
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: thief.name, Name: "g-b"},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr(""), VolumeName: volume.Name, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}, Resources: thief.claimSize("1Gi"),
		},
	}
	require.NoError(t, k.client.Create(t.Context(), claim))
	stolen := k.stolen(t)
	made := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: volume.Name, Labels: volume.Labels, Annotations: volume.Annotations}, Spec: volume.Spec}
	made.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: team.name, Name: "g-b"}
	made.Name, made.Labels[replica.LabelDataset] = "flexlvm-ds-fedcba9876543210", "fedcba9876543210"
	require.NoError(t, stolen.Create(t.Context(), made.DeepCopy(), client.DryRunAll), "as the controller makes it")
	for name, change := range map[string]func(*corev1.PersistentVolume){
		"to be written":       func(v *corev1.PersistentVolume) { v.Spec.CSI.ReadOnly = false },
		"of a volume":         func(v *corev1.PersistentVolume) { v.Spec.CSI.VolumeAttributes["volume"] = "pvc-1" },
		"by its writer":       func(v *corev1.PersistentVolume) { v.Spec.CSI.VolumeHandle = "flexlvm/ds-0123456789abcdef" },
		"that says otherwise": func(v *corev1.PersistentVolume) { v.Spec.CSI.VolumeAttributes["readOnly"] = "false" },
		"for another's claim": func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.Namespace = thief.name },
		"for whoever comes":   func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = nil },
		"for many who write": func(v *corev1.PersistentVolume) {
			v.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		},
		"under another's name": func(v *corev1.PersistentVolume) { v.Name = "mine" },
		"of the system":        func(v *corev1.PersistentVolume) { v.Spec.CSI.VolumeAttributes["ownerNamespace"] = "kube-system" },
	} {
		v := made.DeepCopy()
		change(v)
		require.ErrorContains(t, stolen.Create(t.Context(), v, client.DryRunAll), "may let a namespace read a dataset of another only", name)
	}
	require.NoError(t, k.client.Get(t.Context(), client.ObjectKeyFromObject(claim), claim))
	require.Equal(t, corev1.ClaimPending, claim.Status.Phase, "the PersistentVolume is of another claim")
	thief.remove(claim)
}
