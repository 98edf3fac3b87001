//go:build cluster

package dataset_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/test/await"
)

// testExamples applies what users are told to apply.
func (k *kubelets) testExamples(t *testing.T) {
	s := k.namespace(t, "examples")
	k.kubectl(t, "apply", "-n", s.name, "-f", filepath.Join(k.source, "examples/datasets"))
	for _, name := range []string{"s3-one", "s3-replicas", "s3-two", "nfs", "pachyderm", "mixed"} {
		s.status(name, flexlvmv1.StateRunning, "success")
	}
	// The training job goes where its data are, and names nothing but the claim.
	pods := &corev1.PodList{}
	await.Until(t, longest, func() string {
		require.NoError(t, k.client.List(t.Context(), pods, client.InNamespace(s.name), client.MatchingLabels{"batch.kubernetes.io/job-name": "training"}))
		return await.Missing(len(pods.Items) == 1, "%d pods train", len(pods.Items))
	})
	require.Contains(t, s.labelled("s3-one"), s.nodeOf(pods.Items[0].Name))
	// What VCK had is taken with another apiVersion: the kinds that it published.
	require.Len(t, s.get("s3-two").Spec.VolumeConfigs, 2)
	k.kubectl(t, "delete", "job", "training", "-n", s.name)
	k.kubectl(t, "delete", "vm", "--all", "-n", s.name, "--timeout=60s")
	s.nothingLeft()
}

// testPolicies: the provisioner's token is good for datasets and for nothing else.
func (k *kubelets) testPolicies(t *testing.T) {
	config := rest.CopyConfig(k.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + system + ":" + account}
	stolen, err := client.New(config, client.Options{Scheme: k.client.Scheme()})
	require.NoError(t, err)
	ctx, s := t.Context(), k.namespace(t, "policies")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodes[0]}}
	merge := func(object client.Object, patch string) error {
		return stolen.Patch(ctx, object, client.RawPatch("application/merge-patch+json", []byte(patch)))
	}
	for _, patch := range []string{
		`{"metadata":{"labels":{"gpu":"yes"}}}`, `{"metadata":{"labels":{"kubernetes.io/hostname":null}}}`,
		`{"metadata":{"annotations":{"a":"b"}}}`, `{"spec":{"unschedulable":true}}`, `{"metadata":{"finalizers":["a/b"]}}`,
	} {
		require.ErrorContains(t, merge(node.DeepCopy(), patch), "may only change the labels flexlvm.io/ds-... of a node", patch)
	}
	require.NoError(t, merge(node.DeepCopy(), `{"metadata":{"labels":{"flexlvm.io/ds-x":"true"}}}`))
	require.NoError(t, merge(node.DeepCopy(), `{"metadata":{"labels":{"flexlvm.io/ds-x":null}}}`))

	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "c"},
		Spec:       corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Resources: s.claimSize("1Gi"), StorageClassName: ptr("flexlvm")},
	}
	require.ErrorContains(t, stolen.Create(ctx, claim.DeepCopy()), "may only create claims that a VolumeManager owns")
	require.NoError(t, k.client.Create(ctx, claim))
	// kube-controller-manager has not asked for a volume: it belongs to somebody else.
	require.ErrorContains(t, merge(claim.DeepCopy(), `{"metadata":{"annotations":{"flexlvm.io/load":"x"}}}`), "may only take the annotation")
	require.ErrorContains(t, merge(claim.DeepCopy(), `{"metadata":{"labels":{"flexlvm.io/volumemanager":"x"}}}`), "may only take the annotation")

	job := func(change func(*batchv1.Job)) *batchv1.Job {
		yes, no := true, false
		out := &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: s.name, Name: "j", Labels: map[string]string{"flexlvm.io/volumemanager": "uid"},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "flexlvm.io/v1", Kind: "VolumeManager", Name: "v", UID: "uid", Controller: &yes}},
			},
			Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: &no,
				SecurityContext: &corev1.PodSecurityContext{
					RunAsNonRoot: &yes, RunAsUser: ptr(int64(65532)), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
				},
				Containers: []corev1.Container{{Name: "c", Image: "i", Command: []string{"/fetch"}, SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				}}},
			}}},
		}
		change(out)
		return out
	}
	require.NoError(t, stolen.Create(ctx, job(func(*batchv1.Job) {}), client.DryRunAll))
	for name, change := range map[string]func(*batchv1.Job){
		"that a VolumeManager owns": func(j *batchv1.Job) { j.OwnerReferences = nil },
		"load or upload a dataset: command": func(j *batchv1.Job) {
			j.Spec.Template.Spec.Containers[0].Command = []string{"/bin/sh"}
		},
		"load or upload a dataset: host": func(j *batchv1.Job) { j.Spec.Template.Spec.HostNetwork = true },
		"load or upload a dataset: path": func(j *batchv1.Job) {
			j.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "x", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}}
		},
		"load or upload a dataset: token": func(j *batchv1.Job) { j.Spec.Template.Spec.AutomountServiceAccountToken = nil },
		"load or upload a dataset: environment": func(j *batchv1.Job) {
			j.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: "b"}}
		},
		"load or upload a dataset: root": func(j *batchv1.Job) { j.Spec.Template.Spec.SecurityContext = nil },
		"run as nobody: user":            func(j *batchv1.Job) { j.Spec.Template.Spec.SecurityContext.RunAsUser = nil },
		"run as nobody: container": func(j *batchv1.Job) {
			j.Spec.Template.Spec.Containers[0].SecurityContext.RunAsUser = ptr(int64(0))
		},
		"run as nobody: container's root": func(j *batchv1.Job) {
			j.Spec.Template.Spec.Containers[0].SecurityContext.RunAsNonRoot = ptr(false)
		},
		"run as nobody: capability": func(j *batchv1.Job) {
			j.Spec.Template.Spec.Containers[0].SecurityContext.Capabilities.Add = []corev1.Capability{"SYS_MODULE"}
		},
		"run as nobody: capabilities": func(j *batchv1.Job) { j.Spec.Template.Spec.Containers[0].SecurityContext.Capabilities = nil },
		"run as nobody: seccomp":      func(j *batchv1.Job) { j.Spec.Template.Spec.SecurityContext.SeccompProfile = nil },
		"run as nobody: container's seccomp": func(j *batchv1.Job) {
			j.Spec.Template.Spec.Containers[0].SecurityContext.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}
		},
		"run as nobody: port": func(j *batchv1.Job) {
			j.Spec.Template.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}}
		},
		"run as nobody: hook": func(j *batchv1.Job) {
			j.Spec.Template.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sh"}}}}
		},
		"run as nobody: node": func(j *batchv1.Job) { j.Spec.Template.Spec.NodeName = nodes[0] },
	} {
		message, _, _ := strings.Cut(name, ":")
		require.ErrorContains(t, stolen.Create(ctx, job(change), client.DryRunAll), message, name)
	}
	others := job(func(j *batchv1.Job) { j.OwnerReferences, j.Labels = nil, nil })
	require.NoError(t, k.client.Create(ctx, others))
	require.ErrorContains(t, stolen.Delete(ctx, others), "may only create and delete Jobs that a VolumeManager owns")
	k.kubectl(t, "delete", "job,pvc", "--all", "-n", s.name)

	s.make("v", s3)
	vm := s.get("v")
	for _, patch := range []string{
		`{"spec":{"state":"Completed"}}`, `{"metadata":{"annotations":{"flexlvm.io/retry":"1"}}}`, `{"metadata":{"labels":{"a":"b"}}}`,
		`{"metadata":{"finalizers":["flexlvm.io/dataset","a/b"]}}`,
	} {
		require.ErrorContains(t, merge(vm.DeepCopy(), patch), "may only change the finalizer flexlvm.io/dataset", patch)
	}
	k.kubectl(t, "delete", "vm", "v", "-n", s.name, "--timeout=60s")
}
