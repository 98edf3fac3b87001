//go:build cluster

package dataset_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/test/await"
)

// testExamples applies the examples that users are told to apply.
func (k *kubelets) testExamples(t *testing.T) {
	s := k.namespace(t, "examples")
	// The example names its readers' namespace.
	for _, namespace := range []string{"library", "team"} {
		require.NoError(t, k.client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))
	}
	files, err := filepath.Glob(filepath.Join(k.source, "examples/datasets", "*.yaml"))
	require.NoError(t, err)
	for _, file := range files {
		if filepath.Base(file) == "shared.yaml" {
			k.kubectl(t, "apply", "-f", file)
			continue
		}
		k.kubectl(t, "apply", "-n", s.name, "-f", file)
	}
	k.space(t, "library").status("models", flexlvmv1.StateRunning, "success")
	k.space(t, "team").status("models", flexlvmv1.StateRunning, "success")
	k.kubectl(t, "delete", "-f", filepath.Join(k.source, "examples/datasets/shared.yaml"), "--timeout=8m")
	for _, name := range []string{"s3-one", "s3-replicas", "s3-two", "nfs", "pachyderm", "mixed", "http", "huggingface", "oci", "pvc", "gcs", "azure", "s3-every-node", "s3-peers", "s3-refresh", "s3-displaceable", "s3-displacing"} {
		s.status(name, flexlvmv1.StateRunning, "success")
	}
	// The training job names only the claim, and is scheduled to a node with the data.
	pods := &corev1.PodList{}
	await.Until(t, longest, func() string {
		require.NoError(t, k.client.List(t.Context(), pods, client.InNamespace(s.name), client.MatchingLabels{"batch.kubernetes.io/job-name": "training"}))
		return await.Missing(len(pods.Items) == 1, "%d pods train", len(pods.Items))
	})
	require.Contains(t, s.labelled("s3-one"), s.nodeOf(pods.Items[0].Name))
	// VCK's published kinds need only another apiVersion.
	require.Len(t, s.get("s3-two").Spec.VolumeConfigs, 2)
	k.kubectl(t, "delete", "job", "training", "-n", s.name)
	k.kubectl(t, "delete", "vm", "--all", "-n", s.name, "--timeout=8m")
	s.nothingLeft()
}

func scaleDown(value, ours string) string {
	return fmt.Sprintf(`{"metadata":{"annotations":{%q:%s,%q:%s}}}`, pv.AnnotationScaleDown, value, pv.AnnotationScaleDownOurs, ours)
}

// testPolicies checks that the provisioner's token can manage datasets and nothing else.
func (k *kubelets) testPolicies(t *testing.T) {
	stolen := k.stolen(t)
	ctx, s := t.Context(), k.namespace(t, "policies")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodes[0]}}
	merge := func(object client.Object, patch string) error {
		return stolen.Patch(ctx, object, client.RawPatch("application/merge-patch+json", []byte(patch)))
	}
	for _, patch := range []string{
		`{"metadata":{"labels":{"theirs":"yes"}}}`, `{"metadata":{"labels":{"kubernetes.io/hostname":null}}}`,
		`{"metadata":{"annotations":{"a":"b"}}}`, `{"spec":{"unschedulable":true}}`, `{"metadata":{"finalizers":["a/b"]}}`,
	} {
		require.ErrorContains(t, merge(node.DeepCopy(), patch), "may only change the labels flexlvm.io/ds-... of a node", patch)
	}
	require.NoError(t, merge(node.DeepCopy(), `{"metadata":{"labels":{"flexlvm.io/ds-x":"true"}}}`))
	require.NoError(t, merge(node.DeepCopy(), `{"metadata":{"labels":{"flexlvm.io/ds-x":null}}}`))
	for _, value := range []string{`"true"`, "null"} { // the annotation that the cluster autoscaler reads
		require.NoError(t, merge(node.DeepCopy(), scaleDown(value, value)))
	}
	// A person's setting is not changed.
	const denied = "of a node that has none"
	require.ErrorContains(t, merge(node.DeepCopy(), scaleDown(`"false"`, `"true"`)), denied)
	require.ErrorContains(t, merge(node.DeepCopy(), scaleDown(`"true"`, "null")), denied)
	theirs := func(patch string) {
		t.Helper()
		require.NoError(t, k.client.Patch(ctx, node.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(patch))))
	}
	theirs(scaleDown(`"true"`, "null"))
	for _, patch := range []string{scaleDown("null", "null"), scaleDown(`"false"`, "null"), scaleDown(`"true"`, `"true"`), scaleDown("null", `"true"`)} {
		require.ErrorContains(t, merge(node.DeepCopy(), patch), denied, patch)
	}
	theirs(scaleDown(`"false"`, `"true"`)) // set since by a person
	require.ErrorContains(t, merge(node.DeepCopy(), scaleDown("null", "null")), denied)
	require.NoError(t, merge(node.DeepCopy(), scaleDown(`"false"`, "null")))
	theirs(scaleDown("null", "null"))

	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "c"},
		Spec:       corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Resources: s.claimSize("1Gi"), StorageClassName: ptr("flexlvm")},
	}
	require.ErrorContains(t, stolen.Create(ctx, claim.DeepCopy()), "may only create claims that a VolumeManager owns")
	require.NoError(t, k.client.Create(ctx, claim))
	// The claim has no request for a volume from kube-controller-manager, so it is not the
	// provisioner's.
	require.ErrorContains(t, merge(claim.DeepCopy(), `{"metadata":{"annotations":{"flexlvm.io/load":"x"}}}`), "may only remove the annotation")
	require.ErrorContains(t, merge(claim.DeepCopy(), `{"metadata":{"labels":{"flexlvm.io/volumemanager":"x"}}}`), "may only remove the annotation")

	k.kubectl(t, "delete", "pvc", "--all", "-n", s.name)

	s.make("v", s3)
	vm := s.get("v")
	for _, patch := range []string{
		`{"spec":{"state":"Completed"}}`, `{"metadata":{"annotations":{"flexlvm.io/retry":"1"}}}`, `{"metadata":{"labels":{"a":"b"}}}`,
		`{"metadata":{"finalizers":["flexlvm.io/dataset","a/b"]}}`,
	} {
		require.ErrorContains(t, merge(vm.DeepCopy(), patch), "may only change the finalizer flexlvm.io/dataset", patch)
	}
	k.kubectl(t, "delete", "vm", "v", "-n", s.name, "--timeout=8m")
}
