// Package installer_test looks at the manifests without a cluster; test/cluster
// applies them to a real one.
package installer_test

import (
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/flexlvm/flexlvm/internal/eviction"
)

// objects reads every manifest but the generated CRDs and what kustomize reads. A
// field that the API does not know is an error.
func objects(t *testing.T) map[string]runtime.Object {
	t.Helper()
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	out := map[string]runtime.Object{}
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" ||
			entry.Name() == "kustomization.yaml" || filepath.Base(filepath.Dir(path)) == "crd" {
			return err
		}
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		for i, document := range strings.Split(string(content), "\n---\n") {
			object, _, err := decoder.Decode([]byte(document), nil, nil)
			require.NoError(t, err, "%s, document %d", path, i+1)
			accessor, err := meta.Accessor(object)
			require.NoError(t, err)
			out[fmt.Sprintf("%s %T %s", path, object, accessor.GetName())] = object
		}
		return nil
	})
	require.NoError(t, err)
	require.NotEmpty(t, out)
	return out
}

func TestObjectsAreWellFormedAndLabelled(t *testing.T) {
	for where, object := range objects(t) {
		if strings.HasPrefix(where, "uninstall/") {
			continue // a patch
		}
		accessor, err := meta.Accessor(object)
		require.NoError(t, err)
		require.Equal(t, "flexlvm", accessor.GetLabels()["app.kubernetes.io/part-of"], where)
	}
}

// A policy that names an account nobody has bounds nobody. Whoever a policy is about is told in one form,
// which is what is looked for here.
func TestPoliciesBoundAccountsThatExist(t *testing.T) {
	all, bounded := objects(t), map[string]bool{}
	for where, object := range all {
		policy, ok := object.(*admissionv1.ValidatingAdmissionPolicy)
		if !ok {
			continue
		}
		require.Equal(t, admissionv1.Fail, *policy.Spec.FailurePolicy, where)
		for _, expression := range expressions(policy) {
			if !strings.Contains(expression, "serviceaccount") {
				continue
			}
			_, rest, ok := strings.Cut(expression, "request.userInfo.username == 'system:serviceaccount:flexlvm-system:")
			require.True(t, ok, "%s: nobody looks whether there is an account as in %q", where, expression)
			account, rest, _ := strings.Cut(rest, "'")
			require.Empty(t, rest, where)
			found := false
			for other := range all {
				found = found || strings.HasSuffix(other, "*v1.ServiceAccount "+account)
			}
			require.True(t, found, "%s: no account %q", where, account)
			bounded[account] = true
		}
	}
	require.Subset(t, slices.Collect(maps.Keys(bounded)), []string{"flexlvm-provisioner", "flexlvm-nfs-provisioner", "flexlvm-gc"})
}

// expressions are all of a policy that may name an account.
func expressions(policy *admissionv1.ValidatingAdmissionPolicy) (out []string) {
	for _, c := range policy.Spec.MatchConditions {
		out = append(out, c.Expression)
	}
	for _, v := range policy.Spec.Variables {
		out = append(out, v.Expression)
	}
	for _, v := range policy.Spec.Validations {
		out = append(out, v.Expression)
	}
	return out
}

func TestEveryFileIsApplied(t *testing.T) {
	for _, dir := range []string{"base", "csi", "csi/resizer", "csi/snapshotter", "gc", "metrics/auth", "metrics/networkpolicy", "nfs", "node"} {
		content, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
		require.NoError(t, err)
		var listed struct{ Resources []string }
		require.NoError(t, yaml.Unmarshal(content, &listed))
		var files []string
		for _, pattern := range []string{"*.yaml", "crd/*.yaml"} {
			found, err := filepath.Glob(filepath.Join(dir, pattern))
			require.NoError(t, err)
			for _, file := range found {
				if name := strings.TrimPrefix(file, dir+"/"); name != "kustomization.yaml" {
					files = append(files, name)
				}
			}
		}
		require.ElementsMatch(t, files, listed.Resources, dir)
	}
}

// daemons gives the pods of those that answer over HTTP.
func daemons(t *testing.T) map[string]corev1.PodSpec {
	t.Helper()
	pods := map[string]corev1.PodSpec{}
	for where, object := range objects(t) {
		switch o := object.(type) {
		case *appsv1.DaemonSet:
			pods[where] = o.Spec.Template.Spec
		case *appsv1.Deployment:
			pods[where] = o.Spec.Template.Spec
		}
	}
	maps.DeleteFunc(pods, func(_ string, pod corev1.PodSpec) bool {
		return len(pod.Containers) == 0 || pod.Containers[0].LivenessProbe == nil
	})
	require.Len(t, pods, 4)
	return pods
}

// Whoever waits for the installer finds the driver in the directory that it was told.
func TestInstallerIsReadyWhenTheDriverIsThere(t *testing.T) {
	var installer *corev1.Container
	for where, object := range objects(t) {
		if d, ok := object.(*appsv1.DaemonSet); ok && strings.HasPrefix(where, "node/") {
			installer = &d.Spec.Template.Spec.Containers[0]
		}
	}
	require.NotNil(t, installer)
	require.Equal(t, "/installer", installer.Command[0])
	dir := installer.Command[1]
	require.Contains(t, dir, "--plugin-dir=")
	for _, probe := range []*corev1.Probe{installer.StartupProbe, installer.ReadinessProbe} {
		require.NotNil(t, probe)
		require.Equal(t, []string{"/flexlvm", "install", dir, "--verify"}, probe.Exec.Command)
	}
}

// Nobody can publish an image under a name that no registry serves: the driver and a
// privileged daemon run from it.
func TestImageIsNoRegistrysByDefault(t *testing.T) {
	images := 0
	for where, object := range objects(t) {
		var pod corev1.PodSpec
		switch o := object.(type) {
		case *appsv1.DaemonSet:
			pod = o.Spec.Template.Spec
		case *appsv1.Deployment:
			pod = o.Spec.Template.Spec
		}
		for _, c := range append(pod.InitContainers, pod.Containers...) {
			if c.Image == "" && strings.HasPrefix(where, "uninstall/") {
				continue // a patch leaves it as it is
			}
			images++
			require.Equal(t, "localhost/flexlvm/flexlvm", c.Image, where)
		}
	}
	require.Greater(t, images, 4)
	for _, file := range []string{"settings/kustomization.yaml", "base/admission-loaders.yaml", "../cmd/kubectl-flexlvm/job_submit.go", "../docs/install.md", "../docs/jobs.md", "../README.md"} {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NotRegexp(t, "[\"'` ]flexlvm/flexlvm\\b[^.]", strings.ReplaceAll(string(content), "flexlvm.io/flexlvm", ""), file)
	}
}

// A daemon that reaches its limit is killed, and one whose kubelet is not answered is
// started again: neither is for whoever asks for metrics to bring about.
func TestDaemonsWithstandTheirCallers(t *testing.T) {
	for where, pod := range daemons(t) {
		container := pod.Containers[0]
		env := map[string]string{}
		for _, e := range container.Env {
			env[e.Name] = e.Value
		}
		soft, err := resource.ParseQuantity(strings.TrimSuffix(env["GOMEMLIMIT"], "B"))
		require.NoError(t, err, where)
		hard := container.Resources.Limits.Memory()
		require.Less(t, soft.Value(), hard.Value()*8/10, where)

		host, port, err := net.SplitHostPort(env["HEALTH_ADDRESS"])
		require.NoError(t, err, where)
		require.Equal(t, pod.HostNetwork, host == "127.0.0.1", "%s: kubelet comes from the node", where)
		for _, probe := range []*corev1.Probe{container.StartupProbe, container.LivenessProbe, container.ReadinessProbe} {
			asks := probe.HTTPGet.Port
			for _, p := range container.Ports {
				if p.Name == asks.StrVal {
					asks = intstr.FromInt32(p.ContainerPort)
				}
			}
			require.Equal(t, port, asks.String(), where)
			require.Equal(t, host, probe.HTTPGet.Host, where)
		}
	}
}

// GKE admits pods of a system priority class only in namespaces where a quota names the class. A quota with `hard`
// would count every pod, and refuse the first pods until its usage is computed.
func TestQuotaNamesThePriorityClasses(t *testing.T) {
	classes, quotas := map[string]bool{}, []*corev1.ResourceQuota{}
	for where, object := range objects(t) {
		switch o := object.(type) {
		case *appsv1.DaemonSet:
			if !strings.HasPrefix(where, "uninstall/") { // a patch
				classes[o.Spec.Template.Spec.PriorityClassName] = true
			}
		case *appsv1.Deployment:
			classes[o.Spec.Template.Spec.PriorityClassName] = true
		case *corev1.ResourceQuota:
			quotas = append(quotas, o)
		}
	}
	require.Len(t, quotas, 1)
	require.Equal(t, "flexlvm-system", quotas[0].Namespace)
	require.Empty(t, quotas[0].Spec.Hard)
	scopes := quotas[0].Spec.ScopeSelector.MatchExpressions
	require.Len(t, scopes, 1)
	require.Equal(t, corev1.ResourceQuotaScopePriorityClass, scopes[0].ScopeName)
	require.Equal(t, corev1.ScopeSelectorOpIn, scopes[0].Operator)
	require.ElementsMatch(t, slices.Collect(maps.Keys(classes)), scopes[0].Values)
}

// A drain waits only if it would otherwise evict both provisioners at the same time.
func TestDrainsMoveOneProvisionerAtATime(t *testing.T) {
	var budget *policyv1.PodDisruptionBudget
	var provisioner *appsv1.Deployment
	for where, object := range objects(t) {
		switch o := object.(type) {
		case *policyv1.PodDisruptionBudget:
			budget = o
		case *appsv1.Deployment:
			if strings.HasPrefix(where, "base/") {
				provisioner = o
			}
		}
	}
	require.NotNil(t, budget)
	require.NotNil(t, provisioner)
	require.Equal(t, provisioner.Namespace, budget.Namespace)
	require.Equal(t, provisioner.Spec.Selector, budget.Spec.Selector)
	require.EqualValues(t, 2, *provisioner.Spec.Replicas)
	require.Nil(t, budget.Spec.MinAvailable, "it would hold up every drain where there is one replica")
	require.Equal(t, intstr.FromInt32(1), *budget.Spec.MaxUnavailable)
	require.Equal(t, policyv1.AlwaysAllow, *budget.Spec.UnhealthyPodEvictionPolicy)
}

// The manifest shows the defaults, so they must be those.
func TestDaemonFlagsAreTheDefaults(t *testing.T) {
	var daemon *appsv1.DaemonSet
	for _, object := range objects(t) {
		if d, ok := object.(*appsv1.DaemonSet); ok && d.Name == "flexlvm-gc" {
			daemon = d
		}
	}
	require.NotNil(t, daemon)
	container := daemon.Spec.Template.Spec.Containers[0]
	policy := eviction.DefaultPolicy()
	require.Subset(t, container.Args, []string{
		fmt.Sprintf("--address=:%d", container.Ports[0].ContainerPort),
		fmt.Sprintf("--high-threshold-percent=%d", policy.HighPercent),
		fmt.Sprintf("--low-threshold-percent=%d", policy.LowPercent),
		fmt.Sprintf("--min-age=%gm", policy.MinAge.Minutes()),
		fmt.Sprintf("--max-age=%g", policy.MaxAge.Seconds()),
		fmt.Sprintf("--evict-orphans=%t", policy.EvictOrphans),
		fmt.Sprintf("--orphan-age=%gh", policy.OrphanAge.Hours()),
		fmt.Sprintf("--orphan-share-percent=%d", policy.OrphanShare),
		fmt.Sprintf("--thin-data-watermark-percent=%d", policy.ThinDataPercent),
		fmt.Sprintf("--thin-metadata-watermark-percent=%d", policy.ThinMetadataPercent),
	})
}
