package cluster

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// ProbedSoon is a patch for Overlay with a shorter period of the installer's readiness probe. A kubelet that is younger
// than a probe's period delays the first probe by a random part of this period, so that on a new node the shipped one
// takes up to 20 s.
const ProbedSoon = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: flexlvm-installer, namespace: flexlvm-system}
spec:
  template:
    spec:
      containers:
        - name: installer
          readinessProbe: {periodSeconds: 5}
`

// ProvisionerProbedSoon is a patch for Overlay with a shorter period of the provisioner's readiness probe.
const ProvisionerProbedSoon = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: flexlvm-provisioner, namespace: flexlvm-system}
spec:
  template:
    spec:
      containers:
        - name: provisioner
          readinessProbe: {periodSeconds: 5}
`

// Overlay writes a kustomization to the folder dir: the manifests of the kustomization base, changed by strategic merge
// patches. Kustomize fails if base does not have the object that a patch names. The API server refuses a patch of a
// container or a probe that is not there.
func Overlay(dir, base string, patches ...string) error {
	resource, err := relative(dir, base)
	if err != nil {
		return fmt.Errorf("write overlay: %w", err)
	}
	type patch struct {
		Patch string `json:"patch"`
	}
	kustomization := struct {
		Resources []string `json:"resources"`
		Patches   []patch  `json:"patches"`
	}{Resources: []string{resource}}
	for _, p := range patches {
		kustomization.Patches = append(kustomization.Patches, patch{p})
	}
	content, err := json.Marshal(kustomization) // JSON is YAML
	if err != nil {
		return fmt.Errorf("write overlay: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), content, 0o600); err != nil {
		return fmt.Errorf("write overlay: %w", err)
	}
	return nil
}

// relative returns the path to base from the folder dir. Kustomize takes no absolute paths, and resolves symbolic links
// in dir first.
func relative(dir, base string) (string, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", err
	}
	base, err = filepath.EvalSymlinks(base)
	if err != nil {
		return "", err
	}
	return filepath.Rel(dir, base)
}
