package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// overlay builds an overlay of installer/, beside it.
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

// An overlay uninstalls with its own patches, and from the image that the settings name.
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

// The node daemon looks for the driver where the installer puts it.
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

// Who removes the driver is done when it is gone, so it must not wait for it.
func TestWhoUninstallsIsReadyWithoutADriver(t *testing.T) {
	built, err := kustomize(installer + "/uninstall")
	require.NoError(t, err)
	text, err := built.AsYaml()
	require.NoError(t, err)
	require.Contains(t, string(text), "- uninstall\n")
	require.NotContains(t, string(text), "--verify")
	// kubectl takes nothing away from what Helm has installed: a probe that is not replaced stays.
	require.Equal(t, 2, strings.Count(string(text), "Probe:\n"))
	require.Equal(t, 2, strings.Count(string(text), "            - /flexlvm\n            - version\n"))
}
