package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// overlay builds an overlay of installer/, whose objects it returns by kind and name. The kustomization refers to
// installer/ as ../flexlvm/installer.
func overlay(t *testing.T, kustomization string) map[string]map[string]any {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	from, err := filepath.Abs(installer)
	require.NoError(t, err)
	from, err = filepath.EvalSymlinks(from)
	require.NoError(t, err)
	relative, err := filepath.Rel(dir, from)
	require.NoError(t, err)
	text := strings.ReplaceAll(kustomization, "../flexlvm/installer", relative)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600))
	built, err := readFolder(dir, func(object) string { return "" })
	require.NoError(t, err)
	objects := map[string]map[string]any{}
	for _, o := range built {
		objects[o.kind+" "+o.name] = normal(t, o.fields)
	}
	return objects
}

// guideOverlay is the overlay that docs/install.md shows.
func guideOverlay(t *testing.T) string {
	t.Helper()
	guide, err := os.ReadFile("../../docs/install.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(guide), "```yaml\nresources: [../flexlvm/installer]\n")
	require.True(t, found)
	text, _, found := strings.Cut(rest, "```")
	require.True(t, found)
	return "resources: [../flexlvm/installer]\n" + text
}

func TestOverlayOfTheGuide(t *testing.T) {
	got := overlay(t, guideOverlay(t))
	for _, name := range []string{"DaemonSet flexlvm-installer", "DaemonSet flexlvm-gc"} {
		require.Equal(t, "local", lookup(got[name], "spec", "template", "spec", "nodeSelector", "disks"), name)
	}
	gc := container(lookup(got["DaemonSet flexlvm-gc"], "spec", "template", "spec").(map[string]any))
	require.Contains(t, gc["args"], "--high-threshold-percent=90")
}

// An overlay that uninstalls applies its own patches, and runs the image that the settings name.
func TestOverlayThatUninstalls(t *testing.T) {
	got := overlay(t, guideOverlay(t)+`
components: [../flexlvm/installer/uninstall/removal]
`)
	pod := lookup(got["DaemonSet flexlvm-installer"], "spec", "template", "spec").(map[string]any)
	require.Equal(t, "local", lookup(pod, "nodeSelector", "disks"))
	require.Equal(t, []any{"/flexlvm", "uninstall", "--plugin-dir=/plugins", "--wait"}, container(pod)["command"])
	uninstaller := pod["initContainers"].([]any)[0].(map[string]any)
	require.Contains(t, uninstaller["image"], ":v")
	require.Equal(t, container(pod)["image"], uninstaller["image"])
}

// PLUGIN_DIR of the node daemon is the directory in which the installer puts the driver.
func TestPluginDirOfTheDaemon(t *testing.T) {
	got := overlay(t, `
resources: [../flexlvm/installer]
`)
	pod := lookup(got["DaemonSet flexlvm-installer"], "spec", "template", "spec").(map[string]any)
	where := lookup(pod["volumes"].([]any)[0].(map[string]any), "hostPath", "path")
	require.NotEmpty(t, where)
	gc := container(lookup(got["DaemonSet flexlvm-gc"], "spec", "template", "spec").(map[string]any))
	require.Contains(t, gc["env"], map[string]any{"name": "PLUGIN_DIR", "value": where})

	got = overlay(t, `
resources: [../flexlvm/installer/base, ../flexlvm/installer/gc]
components: [../flexlvm/installer/settings]
`)
	gc = container(lookup(got["DaemonSet flexlvm-gc"], "spec", "template", "spec").(map[string]any))
	require.Contains(t, gc["env"], map[string]any{"name": "PLUGIN_DIR", "value": ""}, "no FlexVolume driver is installed")
}

// The uninstaller removes the driver, so its readiness must not depend on the driver's presence.
func TestWhoUninstallsIsReadyWithoutADriver(t *testing.T) {
	built, err := kustomize(installer + "/uninstall")
	require.NoError(t, err)
	text, err := built.AsYaml()
	require.NoError(t, err)
	require.Contains(t, string(text), "- uninstall\n")
	require.NotContains(t, string(text), "--verify")
	// kubectl removes no fields that Helm has set: the installer's probes stay unless the manifest replaces them.
	require.Equal(t, 2, strings.Count(string(text), "Probe:\n"))
	require.Equal(t, 2, strings.Count(string(text), "            - /flexlvm\n            - version\n"))
}
