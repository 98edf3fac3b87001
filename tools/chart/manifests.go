package main

import (
	"fmt"
	"path/filepath"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// An object is one that is installed, as decoded YAML.
type object struct {
	kind, name string
	part       string // the folder of installer/ that it comes from, where it can be left out
	fields     map[string]any
}

// manifests are what kustomize builds, and the settings that went into it.
type manifests struct {
	objects    []object
	monitoring []object // which only some clusters can have
	image      string   // of all containers: name:tag
	pluginDir  string
}

// optionalParts are the folders of installer/ that a cluster may do without.
var optionalParts = []string{"node", "gc"}

// monitoringParts are the values under "monitoring" that each have one kind of object
// installed.
var monitoringParts = map[string]string{
	"PrometheusRule": "alerts", "ConfigMap": "dashboard", "PodMonitor": "podMonitor", "ServiceMonitor": "serviceMonitor", "Service": "serviceMonitor",
}

// readMonitoring adds what is in monitoring/, beside installer/.
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

func readManifests(installer string) (manifests, error) {
	var m manifests
	if err := m.readMonitoring(filepath.Join(installer, "../monitoring")); err != nil {
		return m, err
	}
	part := map[string]string{}
	for _, folder := range optionalParts {
		built, err := kustomize(filepath.Join(installer, folder))
		if err != nil {
			return m, err
		}
		for _, r := range built.Resources() {
			part[r.GetKind()+" "+r.GetName()] = folder
		}
	}
	built, err := kustomize(installer)
	if err != nil {
		return m, err
	}
	for _, r := range built.Resources() {
		fields, err := r.Map()
		if err != nil {
			return m, fmt.Errorf("read %s %s: %w", r.GetKind(), r.GetName(), err)
		}
		m.objects = append(m.objects, object{kind: r.GetKind(), name: r.GetName(), part: part[r.GetKind()+" "+r.GetName()], fields: fields})
	}
	for _, o := range m.objects {
		pod := o.pod()
		if pod == nil {
			continue
		}
		image, _ := container(pod)["image"].(string)
		if m.image != "" && m.image != image {
			return m, fmt.Errorf("%s %s runs %s, others %s: the chart has one image", o.kind, o.name, image, m.image)
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
		return m, fmt.Errorf("%s has no image or no volume plugin-dir", installer)
	}
	return m, nil
}

func kustomize(folder string) (resmap.ResMap, error) {
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", folder, err)
	}
	return built, nil
}

// pod is the specification of a workload's pods; nil for other objects.
func (o object) pod() map[string]any {
	if o.kind != "Deployment" && o.kind != "DaemonSet" {
		return nil
	}
	pod, _ := lookup(o.fields, "spec", "template", "spec").(map[string]any)
	return pod
}

// container is the only container of a pod.
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
