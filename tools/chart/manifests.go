package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// An object is an object to install, as decoded YAML.
type object struct {
	kind, name string
	part       string // the folder of installer/ that it comes from, if it is optional
	fields     map[string]any
}

// manifests are the objects that kustomize builds, and the settings in them.
type manifests struct {
	objects    []object
	monitoring []object // only for clusters with the Prometheus operator or Grafana
	additional []object // from additionalParts and the sidecars, each installed if its value is set
	sidecars   []sidecar
	image      string // of all containers: name:tag
	pluginDir  string
}

// optionalParts are the folders of installer/ that a cluster may leave out.
var optionalParts = []string{"node", "gc"}

// additionalParts are the folders of installer/ that are applied separately.
var additionalParts = []string{"csi"}

// A patch adds a field to an object.
type patch struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// monitoringParts are the values under "monitoring" that install the objects of a kind.
var monitoringParts = map[string]string{
	"PrometheusRule": "alerts", "ConfigMap": "dashboard", "PodMonitor": "podMonitor", "ServiceMonitor": "serviceMonitor", "Service": "serviceMonitor",
}

// readMonitoring adds the objects of monitoring/, beside installer/.
func (m *manifests) readMonitoring(folder string) error {
	for _, folder := range []string{folder, filepath.Join(folder, "servicemonitor")} {
		built, err := kustomize(folder)
		if err != nil {
			return err
		}
		for _, r := range built.Resources() {
			part := monitoringParts[r.GetKind()]
			if part == "" {
				return fmt.Errorf("%s has a %s, which no value of the chart is for", folder, r.GetKind())
			}
			fields, err := r.Map()
			if err != nil {
				return fmt.Errorf("read %s %s: %w", r.GetKind(), r.GetName(), err)
			}
			m.monitoring = append(m.monitoring, object{kind: r.GetKind(), name: r.GetName(), part: "monitoring." + part, fields: fields})
		}
	}
	return nil
}

// readAdditional adds the objects of additionalParts.
func (m *manifests) readAdditional(installer string) error {
	for _, folder := range additionalParts {
		built, err := readFolder(filepath.Join(installer, folder), func(object) string { return folder })
		if err != nil {
			return err
		}
		m.additional = append(m.additional, built...)
	}
	return nil
}

// readFolder returns the objects that kustomize builds in a folder; part returns an object's part.
func readFolder(folder string, part func(object) string) (out []object, err error) {
	built, err := kustomize(folder)
	if err != nil {
		return nil, err
	}
	for _, r := range built.Resources() {
		fields, err := r.Map()
		if err != nil {
			return nil, fmt.Errorf("read %s %s: %w", r.GetKind(), r.GetName(), err)
		}
		o := object{kind: r.GetKind(), name: r.GetName(), fields: fields}
		o.part = part(o)
		out = append(out, o)
	}
	return out, nil
}

// readSidecar adds the component of a sidecar: its objects, and its patch of the provisioner.
func (m *manifests) readSidecar(installer string, s sidecar) error {
	folder := filepath.Join(installer, sidecarFolder, s.key)
	content, err := os.ReadFile(filepath.Join(folder, "kustomization.yaml"))
	if err != nil {
		return fmt.Errorf("read the %s: %w", s.key, err)
	}
	var component struct {
		Resources []string
		Patches   []struct{ Patch string }
	}
	if err := yaml.Unmarshal(content, &component); err != nil {
		return fmt.Errorf("read %s: %w", folder, err)
	}
	if len(component.Patches) != 1 {
		return fmt.Errorf("%s has %d patches; the chart knows what to do with one, of the provisioner", folder, len(component.Patches))
	}
	if err := yaml.Unmarshal([]byte(component.Patches[0].Patch), &s.patches); err != nil {
		return fmt.Errorf("read the patch of %s: %w", folder, err)
	}
	for _, file := range component.Resources {
		content, err := os.ReadFile(filepath.Join(folder, file))
		if err != nil {
			return fmt.Errorf("read the %s: %w", s.key, err)
		}
		for document := range strings.SplitSeq(string(content), "\n---\n") {
			var fields map[string]any
			if err := yaml.Unmarshal([]byte(document), &fields); err != nil {
				return fmt.Errorf("read %s of %s: %w", file, folder, err)
			}
			kind, _ := fields["kind"].(string)
			name, _ := lookup(fields, "metadata", "name").(string)
			m.additional = append(m.additional, object{kind: kind, name: name, part: sidecarFolder + s.key, fields: fields})
		}
	}
	m.sidecars = append(m.sidecars, s)
	return nil
}

func readManifests(installer string) (manifests, error) {
	var m manifests
	if err := m.readMonitoring(filepath.Join(installer, "../monitoring")); err != nil {
		return m, err
	}
	if err := m.readAdditional(installer); err != nil {
		return m, err
	}
	for _, s := range knownSidecars() {
		if err := m.readSidecar(installer, s); err != nil {
			return m, err
		}
	}
	part := map[string]string{}
	for _, folder := range optionalParts {
		built, err := readFolder(filepath.Join(installer, folder), func(object) string { return folder })
		if err != nil {
			return m, err
		}
		for _, o := range built {
			part[o.kind+" "+o.name] = folder
		}
	}
	var err error
	if m.objects, err = readFolder(installer, func(o object) string { return part[o.kind+" "+o.name] }); err != nil {
		return m, err
	}
	return m, m.readSettings(installer)
}

// readSettings reads the image and the directory of volume plugins from the workloads.
func (m *manifests) readSettings(installer string) error {
	for _, o := range slices.Concat(m.objects, m.additional) {
		pod := o.pod()
		if pod == nil {
			continue
		}
		image, _ := container(pod)["image"].(string)
		if m.image != "" && m.image != image {
			return fmt.Errorf("%s %s runs %s, others %s: the chart has one image", o.kind, o.name, image, m.image)
		}
		m.image = image
		volumes, _ := pod["volumes"].([]any)
		for _, v := range volumes {
			if volume := v.(map[string]any); volume["name"] == "plugin-dir" {
				m.pluginDir, _ = volume["hostPath"].(map[string]any)["path"].(string)
			}
		}
	}
	if m.image == "" || m.pluginDir == "" {
		return fmt.Errorf("%s has no image or no volume plugin-dir", installer)
	}
	return nil
}

func kustomize(folder string) (resmap.ResMap, error) {
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", folder, err)
	}
	return built, nil
}

// pod returns the pod spec of a workload, or nil for other objects.
func (o object) pod() map[string]any {
	if o.kind != "Deployment" && o.kind != "DaemonSet" {
		return nil
	}
	pod, _ := lookup(o.fields, "spec", "template", "spec").(map[string]any)
	return pod
}

// container returns the only container of a pod.
func container(pod map[string]any) map[string]any {
	containers, _ := pod["containers"].([]any)
	if len(containers) != 1 {
		panic(fmt.Sprintf("a pod has %d containers; the chart's values are for one", len(containers)))
	}
	return containers[0].(map[string]any)
}

func lookup(fields map[string]any, path ...string) any {
	var at any = fields
	for _, key := range path {
		m, ok := at.(map[string]any)
		if !ok {
			return nil
		}
		at = m[key]
	}
	return at
}
