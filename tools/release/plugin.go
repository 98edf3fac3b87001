package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// plugin is the folder of cmd/ with the kubectl plugin, which runs on users' machines and is not part of the image.
const plugin = "kubectl-flexlvm"

// pluginSystems are the operating systems that it is released for, each on every architecture.
var pluginSystems = []string{"linux", "darwin"}

// downloads is the default base URL of a release's files.
const downloads = "https://" + module + "/releases/download"

// A platform is an operating system and an architecture that the plugin runs on.
type platform struct{ system, arch string }

func (p platform) archive(version string) string {
	return fmt.Sprintf("%s-%s-%s-%s.tar.gz", plugin, version, p.system, p.arch)
}

// buildPlugin compiles the plugin into the folder to, as build does for the programs.
func (s source) buildPlugin(ctx context.Context, version string, p platform, to string) error {
	to, err := filepath.Abs(to)
	if err != nil {
		return fmt.Errorf("build plugin: %w", err)
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return fmt.Errorf("build plugin: %w", err)
	}
	if err := s.goBuild(ctx, p, "-o", to+"/", "-ldflags", linkVersion(version), "./cmd/"+plugin); err != nil {
		return fmt.Errorf("build plugin for %s/%s: %w", p.system, p.arch, err)
	}
	return nil
}

// releasePlugin writes the plugin's archives and its krew manifest into the release. work is a folder for the
// builds. It returns the folders of the Linux builds by architecture, whose components the bill of materials lists.
func (o *options) releasePlugin(ctx context.Context, work string) (built map[string]string, err error) {
	built = map[string]string{}
	license, err := os.ReadFile(filepath.Join(o.source, "LICENSE"))
	if err != nil {
		return nil, fmt.Errorf("release plugin: %w", err)
	}
	var platforms strings.Builder
	for _, system := range pluginSystems {
		for _, arch := range o.arches {
			p := platform{system, arch}
			dir := filepath.Join(work, "plugin-"+system+"-"+arch)
			if err := source(o.source).buildPlugin(ctx, o.version, p, dir); err != nil {
				return nil, err
			}
			if system == "linux" {
				built[arch] = dir
			}
			if err := os.WriteFile(filepath.Join(dir, "LICENSE"), license, 0o644); err != nil {
				return nil, fmt.Errorf("release plugin: %w", err)
			}
			file := filepath.Join(o.to, p.archive(o.version))
			if err := archive(file, 0o755, packed{dir, "."}); err != nil {
				return nil, err
			}
			content, err := os.ReadFile(file)
			if err != nil {
				return nil, fmt.Errorf("release plugin: %w", err)
			}
			fmt.Fprintf(&platforms, krewPlatform, system, arch, o.downloads, o.version, p.archive(o.version), sha256.Sum256(content))
		}
	}
	manifest := fmt.Sprintf(krewManifest, o.version, module) + platforms.String()
	if err := os.WriteFile(filepath.Join(o.to, plugin+"-"+o.version+"-krew.yaml"), []byte(manifest), 0o644); err != nil {
		return nil, fmt.Errorf("release plugin: %w", err)
	}
	return built, nil
}

// https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/
const (
	krewManifest = `apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: flexlvm
spec:
  version: %s
  homepage: https://%s
  shortDescription: Inspect local volumes, and restore deleted ones
  description: |
    Shows the state of nodes and pools, problems and what to do about them, which volumes
    exist and which are evicted next; predicts where a claim fits; restores deleted claims;
    shows how far datasets are loaded, and starts jobs that share a volume.
  caveats: |
    It uses the permissions of your kubeconfig's user, and needs flexlvm in the cluster.
  platforms:
`
	krewPlatform = `  - selector:
      matchLabels:
        os: %s
        arch: %s
    uri: %s/%s/%s
    sha256: %x
    bin: ` + plugin + `
    files:
    - from: ` + plugin + `
      to: .
    - from: LICENSE
      to: .
`
)
