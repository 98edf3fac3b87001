package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The CSI driver, and the CSI resizer beside the provisioner, are installed when the values ask for
// them, with the same objects as kustomize.
func TestCSI(t *testing.T) {
	plain := rendered(t)
	got := rendered(t, "--set", "csi.install=true")
	for _, key := range []string{"DaemonSet flexlvm-csi", "ServiceAccount flexlvm-csi", "StorageClass flexlvm-csi"} {
		require.NotContains(t, plain, key)
		require.Contains(t, got, key)
	}
	require.Equal(t, normal(t, plain["Deployment flexlvm-provisioner"]), normal(t, got["Deployment flexlvm-provisioner"]))
	requireBuilt(t, got, "csi", 3)
	require.Equal(t, map[string]string{"flexlvm-test": "flexlvm"}, testPods(t))
	require.Equal(t, map[string]string{"flexlvm-test": "mine", "flexlvm-test-csi": "flexlvm-csi"}, testPods(t, "--set", "csi.install=true,test.storageClass=mine"))
	require.NotContains(t, rendered(t, "--set", "csi.install=true,storageClasses.install=false"), "StorageClass flexlvm-csi")

	// As in docs/io-limits.md: one line of installer/kustomization.yaml.
	whole := filepath.Join(t.TempDir(), "installer")
	require.NoError(t, os.CopyFS(whole, os.DirFS(installer)))
	file := filepath.Join(whole, "kustomization.yaml")
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	for _, part := range []string{"csi/resizer", "csi/snapshotter"} {
		require.Contains(t, string(content), "  # - "+part+"\n")
		content = []byte(strings.Replace(string(content), "  # - "+part+"\n", "  - "+part+"\n", 1))
	}
	require.NoError(t, os.WriteFile(file, content, 0o600))
	built, err := kustomize(whole)
	require.NoError(t, err)
	got = rendered(t, "--set", "resizer.install=true,snapshotter.install=true")
	compared, kept := 0, 0
	for _, r := range built.Resources() {
		if r.GetKind() == "CustomResourceDefinition" || r.GetKind() == "Namespace" {
			kept++
			continue // see TestDefaultsAreTheManifests
		}
		fields, err := r.Map()
		require.NoError(t, err)
		key := r.GetKind() + " " + r.GetName()
		require.Equal(t, normal(t, fields), normal(t, got[key]), key)
		compared++
	}
	require.Equal(t, len(plain)+8, len(got), "two ClusterRoles, a Role and a policy, and what binds them")
	require.Equal(t, len(got)-kept, compared)

	got = rendered(t, "--set", "resizer.install=true,resizer.image=registry.example.org/csi-resizer:v9,resizer.resources.limits.memory=1Gi,image.pullPolicy=Always,provisioner.flags.door=csi")
	pod := lookup(got["Deployment flexlvm-provisioner"], "spec", "template", "spec").(map[string]any)
	containers := pod["containers"].([]any)
	require.Len(t, containers, 2)
	require.Equal(t, []any{"--loader-image=$(IMAGE)", "--controller-socket=/run/csi/csi.sock", "--door=csi"}, containers[0].(map[string]any)["args"])
	sidecar := containers[1].(map[string]any)
	require.Equal(t, "registry.example.org/csi-resizer:v9", sidecar["image"])
	require.Equal(t, "Always", sidecar["imagePullPolicy"])
	require.Equal(t, "1Gi", lookup(sidecar, "resources", "limits", "memory"))

	got = rendered(t, "--set", "snapshotter.install=true")
	pod = lookup(got["Deployment flexlvm-provisioner"], "spec", "template", "spec").(map[string]any)
	containers = pod["containers"].([]any)
	require.Len(t, containers, 2)
	require.Equal(t, []any{"--loader-image=$(IMAGE)", "--snapshot-socket=/run/csi/snapshots.sock"}, containers[0].(map[string]any)["args"])
	require.NotEmpty(t, containers[0].(map[string]any)["volumeMounts"])
	require.NotEmpty(t, pod["volumes"])
}

// requireBuilt checks that a release has the n objects that kustomize builds from a folder.
func requireBuilt(t *testing.T, got map[string]map[string]any, folder string, n int) {
	t.Helper()
	built, err := kustomize(filepath.Join(installer, folder))
	require.NoError(t, err)
	require.Len(t, built.Resources(), n)
	for _, r := range built.Resources() {
		fields, err := r.Map()
		require.NoError(t, err)
		key := r.GetKind() + " " + r.GetName()
		require.Equal(t, normal(t, fields), normal(t, got[key]), key)
	}
}

// Where only the CSI driver is installed, the classes that name no door use it, and the notes call no program that the
// nodes do not have.
func TestCSIAlone(t *testing.T) {
	args := func(set string) any {
		got := rendered(t, "--set", set)
		return container(lookup(got["Deployment flexlvm-provisioner"], "spec", "template", "spec").(map[string]any))["args"]
	}
	const alone = "csi.install=true,installer.install=false"
	require.Equal(t, []any{"--loader-image=$(IMAGE)", "--door=csi"}, args(alone))
	require.Equal(t, []any{"--loader-image=$(IMAGE)", "--door=flex"}, args(alone+",provisioner.flags.door=flex"))
	require.Equal(t, []any{"--loader-image=$(IMAGE)", "--door=csi"}, args(alone+",provisioner.flags=null"))
	require.Equal(t, []any{"--loader-image=$(IMAGE)", "--door=csi"}, args(alone+",provisioner.flags.door=null"))
	require.Equal(t, []any{"--loader-image=$(IMAGE)"}, args("csi.install=true"))
	require.Equal(t, []any{"--loader-image=$(IMAGE)"}, args("csi.install=true,provisioner.flags.door=null"))
	require.Equal(t, []any{"--loader-image=$(IMAGE)"}, args("installer.install=false"), "the driver is installed otherwise")

	notes := func(set string) string {
		out, err := helm(t, "install", "flexlvm", shipped, "--dry-run=client", "--set", set)
		require.NoError(t, err, out)
		_, notes, found := strings.Cut(out, "\nNOTES:\n")
		require.True(t, found, out)
		return notes
	}
	require.Contains(t, notes("csi.install=true"), "/flexlvm.io~flexlvm/flexlvm vg create /dev/DISK\n")
	require.NotContains(t, notes(alone), "flexlvm.io~flexlvm")
	require.Contains(t, notes(alone), "vgcreate --metadatasize 16m flexlvm /dev/DISK\n")
}
