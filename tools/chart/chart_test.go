package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

const (
	installer = "../../installer"
	shipped   = "../../charts/flexlvm"
)

// builtHelm builds the helm that this module requires into the cache and returns its path.
var builtHelm = sync.OnceValues(func() (string, error) {
	cache := os.Getenv("FLEXLVM_CACHE")
	if cache == "" {
		cache = "../../.cache"
	}
	path, err := filepath.Abs(filepath.Join(cache, "helm"))
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-o", path, "helm.sh/helm/v4/cmd/helm")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build helm: %w: %s", err, out)
	}
	return path, nil
})

func helm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	path, err := builtHelm()
	require.NoError(t, err)
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	return stdout.String() + stderr.String(), err
}

// rendered returns the objects of a release by kind and name, without those of helm test.
func rendered(t *testing.T, args ...string) map[string]map[string]any {
	t.Helper()
	out, err := helm(t, append([]string{"template", "flexlvm", shipped, "--skip-tests"}, args...)...)
	require.NoError(t, err, out)
	objects := map[string]map[string]any{}
	for _, document := range strings.Split("\n"+out, "\n---\n") {
		var fields map[string]any
		require.NoError(t, yaml.Unmarshal([]byte(document), &fields), document)
		if fields == nil {
			continue
		}
		key := fields["kind"].(string) + " " + lookup(fields, "metadata", "name").(string)
		require.NotContains(t, objects, key)
		objects[key] = fields
	}
	return objects
}

// normal converts an object to JSON's types, because manifests and Helm differ in the types of numbers.
func normal(t *testing.T, fields map[string]any) map[string]any {
	t.Helper()
	content, err := yaml.Marshal(fields)
	require.NoError(t, err)
	var out map[string]any
	require.NoError(t, yaml.Unmarshal(content, &out))
	return out
}

// The chart with its defaults installs the same objects as kustomize. Only the CustomResourceDefinitions and the
// Namespace differ: they also ask Helm to keep them.
func TestDefaultsAreTheManifests(t *testing.T) {
	want, err := readManifests(installer)
	require.NoError(t, err)
	got := rendered(t)
	kept := map[string]int{}
	for _, o := range want.objects {
		key := o.kind + " " + o.name
		require.Contains(t, got, key)
		if o.kind == "CustomResourceDefinition" || o.kind == "Namespace" {
			kept[o.kind]++
			metadata := lookup(got[key], "metadata").(map[string]any)
			annotations, _ := metadata["annotations"].(map[string]any)
			require.Equal(t, "keep", annotations["helm.sh/resource-policy"], "%s: else all VolumeManagers, or all daemons, go with it", key)
			delete(annotations, "helm.sh/resource-policy")
			if len(annotations) == 0 {
				delete(metadata, "annotations")
			}
		}
		require.Equal(t, normal(t, o.fields), normal(t, got[key]), key)
		delete(got, key)
	}
	require.Empty(t, got, "kustomize does not build it")
	require.Equal(t, map[string]int{"CustomResourceDefinition": 5, "Namespace": 1}, kept)
	require.Greater(t, len(want.objects), 30)
}

func TestValues(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0", 64)
	file := filepath.Join(t.TempDir(), "values.yaml")
	require.NoError(t, os.WriteFile(file, []byte(`
image: {repository: registry.example.org/storage/flexlvm, tag: v9, digest: "`+digest+`", pullPolicy: Always}
imagePullSecrets: [{name: login}]
pluginDir: /var/lib/kubelet/volumeplugins
namespace: {create: false}
crds: {install: false}
storageClasses: {install: false}
provisioner:
  replicas: 3
  flags: {node-loss-grace: 1h, node-group: ["a=flexlvm:1Ti", "b=flexlvm:2Ti"]}
  goMemoryLimit: 400MiB
  resources: {limits: {memory: 512Mi}}
gc:
  flags: {high-threshold-percent: 90, interval: null, verbose: true, list-volumes-up-to: 1000000, delete-rate: 25000000.0}
  nodeSelector: {disks: local}
  tolerations: []
  affinity: {nodeAffinity: {}}
  podAnnotations: {example.org/a: b}
  maxUnavailable: 1
  priorityClassName: high
installer:
  flags: {interval: 5m}
`), 0o600))
	got := rendered(t, "--values", file)
	for key := range got {
		for _, kind := range []string{"Namespace ", "CustomResourceDefinition ", "StorageClass "} {
			require.False(t, strings.HasPrefix(key, kind), key)
		}
	}
	image := "registry.example.org/storage/flexlvm:v9@" + digest
	pod := func(key string) map[string]any { return lookup(got[key], "spec", "template", "spec").(map[string]any) }
	for _, key := range []string{"Deployment flexlvm-provisioner", "DaemonSet flexlvm-gc", "DaemonSet flexlvm-installer"} {
		require.Equal(t, image, container(pod(key))["image"], key)
		require.Equal(t, "Always", container(pod(key))["imagePullPolicy"], key)
		require.Equal(t, []any{map[string]any{"name": "login"}}, pod(key)["imagePullSecrets"], key)
	}
	policy, err := yaml.Marshal(got["ValidatingAdmissionPolicy provisioner-jobs.flexlvm.io"])
	require.NoError(t, err)
	require.Contains(t, string(policy), "'''"+image+"'''", "loaders run no other image")
	everything, err := yaml.Marshal(got)
	require.NoError(t, err)
	require.NotContains(t, string(everything), "/usr/libexec")
	require.NotContains(t, string(everything), "localhost/flexlvm")

	provisioner := container(pod("Deployment flexlvm-provisioner"))
	require.Equal(t, []any{"--loader-image=$(IMAGE)", "--node-group=a=flexlvm:1Ti", "--node-group=b=flexlvm:2Ti", "--node-loss-grace=1h"}, provisioner["args"])
	require.Contains(t, provisioner["env"], map[string]any{"name": "IMAGE", "value": image})
	require.Contains(t, provisioner["env"], map[string]any{"name": "GOMEMLIMIT", "value": "400MiB"})
	require.Equal(t, "512Mi", lookup(provisioner, "resources", "limits", "memory"))
	require.EqualValues(t, 3, lookup(got["Deployment flexlvm-provisioner"], "spec", "replicas"))

	gc := container(pod("DaemonSet flexlvm-gc"))
	require.Contains(t, gc["args"], "--high-threshold-percent=90")
	require.Contains(t, gc["args"], "--verbose=true")
	for _, flag := range []string{"--list-volumes-up-to=1000000", "--delete-rate=25000000"} {
		require.Contains(t, gc["args"], flag, "flags for whole numbers refuse an exponent")
	}
	require.NotContains(t, gc["args"], "--interval=1m")
	require.Equal(t, map[string]any{"disks": "local", "kubernetes.io/os": "linux"}, pod("DaemonSet flexlvm-gc")["nodeSelector"])
	require.Empty(t, pod("DaemonSet flexlvm-gc")["tolerations"])
	require.Contains(t, pod("DaemonSet flexlvm-gc"), "affinity")
	require.Equal(t, "high", pod("DaemonSet flexlvm-gc")["priorityClassName"])
	require.EqualValues(t, 1, lookup(got["DaemonSet flexlvm-gc"], "spec", "updateStrategy", "rollingUpdate", "maxUnavailable"))
	require.Equal(t, map[string]any{"example.org/a": "b"}, lookup(got["DaemonSet flexlvm-gc"], "spec", "template", "metadata", "annotations"))
	require.Equal(t, []any{"/installer", "--plugin-dir=/plugins", "--interval=5m"}, container(pod("DaemonSet flexlvm-installer"))["command"])

	require.Contains(t, gc["env"], map[string]any{"name": "PLUGIN_DIR", "value": "/var/lib/kubelet/volumeplugins"})

	got = rendered(t, "--set", "installer.install=false")
	gc = container(pod("DaemonSet flexlvm-gc"))
	require.Contains(t, gc["env"], map[string]any{"name": "PLUGIN_DIR", "value": ""}, "its daemon looks for a driver that nobody installs")
	got = rendered(t, "--set", "gc.install=false,installer.install=false")
	require.NotContains(t, got, "DaemonSet flexlvm-gc")
	require.NotContains(t, got, "ClusterRole flexlvm-gc")
	require.NotContains(t, got, "DaemonSet flexlvm-installer")
	require.Contains(t, got, "Deployment flexlvm-provisioner")
}

// Prometheus scrapes the port that the daemon listens on, and the scheduler reserves that port of the node.
func TestPortOfMetrics(t *testing.T) {
	for set, want := range map[string][2]float64{
		"":                                   {9809, 8080},
		"gc.flags.address=:9909":             {9909, 8080},
		"gc.flags.address=127.0.0.1:9909":    {9909, 8080},
		"gc.flags.address={:9808,[::]:9907}": {9907, 8080},
		"gc.flags.address=null":              {9809, 8080},
		"gc.flags.address=:0":                {9809, 8080},
		"gc.flags=null":                      {9809, 8080},
		"provisioner.flags=null":             {9809, 8080},
		"provisioner.flags.address=:9080":    {9809, 9080},
	} {
		got := rendered(t, "--set", set)
		for i, key := range []string{"DaemonSet flexlvm-gc", "Deployment flexlvm-provisioner"} {
			pod := lookup(got[key], "spec", "template", "spec").(map[string]any)
			port := container(pod)["ports"].([]any)[0].(map[string]any)
			require.Equal(t, "http", port["name"], set)
			require.EqualValues(t, want[i], port["containerPort"], set)
		}
	}
}

// The objects of monitoring/ are installed unchanged when the values ask for them.
func TestMonitoring(t *testing.T) {
	want, err := readManifests(installer)
	require.NoError(t, err)
	require.Len(t, want.monitoring, 5)
	got := rendered(t, "--set", "monitoring.alerts=true,monitoring.podMonitor=true,monitoring.serviceMonitor=true,monitoring.dashboard=true")
	for _, o := range want.monitoring {
		key := o.kind + " " + o.name
		require.Contains(t, got, key)
		require.Equal(t, normal(t, o.fields), normal(t, got[key]), key)
	}
	require.Len(t, got, len(want.objects)+len(want.monitoring))

	got = rendered(t, "--set", "monitoring.podMonitor=true,monitoring.endpoint.scheme=https,monitoring.endpoint.tlsConfig.insecureSkipVerify=true")
	endpoint := lookup(got["PodMonitor flexlvm"], "spec", "podMetricsEndpoints").([]any)[0].(map[string]any)
	require.Equal(t, "https", endpoint["scheme"])
	require.Equal(t, true, lookup(endpoint, "tlsConfig", "insecureSkipVerify"))
	require.Equal(t, "http", endpoint["port"])
	require.NotContains(t, got, "PrometheusRule flexlvm")

	got = rendered(t, "--set", "monitoring.alerts=true,monitoring.podMonitor=true,monitoring.serviceMonitor=true,monitoring.labels.release=stack")
	for _, key := range []string{"PrometheusRule flexlvm", "PodMonitor flexlvm", "ServiceMonitor flexlvm"} {
		require.Equal(t, map[string]any{"app.kubernetes.io/part-of": "flexlvm", "release": "stack"}, lookup(got[key], "metadata", "labels"), key)
	}

	got = rendered(t, "--set", "monitoring.alerts=true,monitoring.runbookBaseURL=https://wiki.example.org/flexlvm/")
	group := lookup(got["PrometheusRule flexlvm"], "spec", "groups").([]any)[0]
	rule := lookup(group.(map[string]any), "rules").([]any)[0].(map[string]any)
	require.Equal(t, "https://wiki.example.org/flexlvm/docs/alerts.md#flexlvmroommissing", lookup(rule, "annotations", "runbook_url"))
	require.Equal(t, "docs/alerts.md#flexlvmroommissing", lookup(rule, "annotations", "runbook"))
}

// A misspelt value must be refused, not ignored silently.
func TestValuesThatAreRefused(t *testing.T) {
	for set, says := range map[string]string{
		"gc.resource.limits.memory=1Gi": "resource",
		"image.digest=sha256:short":     "digest",
		"image.pullPolicy=Sometimes":    "pullPolicy",
		"pluginDir=relative":            "pluginDir",
		"provisioner.replicas=many":     "replicas",
		"gc.flags.Interval=1m":          "flags",
		"gc.flags.interval[0].a=1m":     "flags",

		"monitoring.runbookBaseURL=docs/alerts.md": "runbookBaseURL",
	} {
		out, err := helm(t, "template", "flexlvm", shipped, "--set", set)
		require.Error(t, err, set)
		require.Contains(t, out, says, set)
	}
}

func TestChartHasNoWarnings(t *testing.T) {
	out, err := helm(t, "lint", "--strict", shipped)
	require.NoError(t, err, out)
}
