package main

import (
	"fmt"
	"slices"
	"strings"
)

// A chart is generated from manifests.
type chart struct {
	from      manifests
	version   string // v0.1.0
	templates map[string]string
	workloads []value
}

const notice = "# Generated from installer/ by `make generate`: change it there.\n"

func newChart(from manifests) (*chart, error) {
	_, version, found := strings.Cut(from.image, ":")
	if !found || !strings.HasPrefix(version, "v") {
		return nil, fmt.Errorf("the image %s has no tag that is a version", from.image)
	}
	c := &chart{from: from, version: version, templates: map[string]string{}}
	for _, o := range slices.Concat(from.objects, from.additional, from.monitoring) {
		if err := c.add(o); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// add adds an object as a template.
func (c *chart) add(o object) error {
	var m placeholders
	if pod := o.pod(); pod != nil {
		c.addWorkload(o, pod, &m)
	}
	addMonitoring(o, &m)
	if o.kind == "CustomResourceDefinition" || o.kind == "Namespace" {
		keep(o)
	}
	replaceStrings(o.fields, func(s string) string {
		s = strings.ReplaceAll(s, c.from.image, m.in(`include "flexlvm.image" $`))
		if s == c.from.pluginDir {
			return m.in(`$.Values.pluginDir`)
		}
		return s
	})
	text, err := m.write(o.fields)
	if err != nil {
		return err
	}
	if condition := o.condition(); condition != "" {
		text = "{{- if " + condition + " }}\n" + text + "{{- end }}\n"
	}
	file := fmt.Sprintf("%s/%s-%s.yaml", generated, strings.ToLower(o.kind), o.name)
	if c.templates[file] != "" {
		return fmt.Errorf("two objects are called %s %s", o.kind, o.name)
	}
	c.templates[file] = notice + text
	return nil
}

// keep makes Helm leave an object where it is when the release is uninstalled, or when a value excludes the object
// from it. With a definition Kubernetes deletes all of its objects, and with the namespace all daemons.
func keep(o object) {
	metadata := o.fields["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	if annotations == nil {
		annotations = map[string]any{}
		metadata["annotations"] = annotations
	}
	annotations["helm.sh/resource-policy"] = "keep"
}

// condition returns the condition for installing an object; empty: always.
func (o object) condition() string {
	switch {
	case o.kind == "Namespace":
		return ".Values.namespace.create"
	case o.kind == "CustomResourceDefinition":
		return ".Values.crds.install"
	case o.kind == "StorageClass" && o.part == "":
		return ".Values.storageClasses.install"
	case o.kind == "StorageClass":
		return "and .Values.storageClasses.install .Values." + o.part + ".install"
	case strings.HasPrefix(o.part, sidecarFolder):
		return ".Values." + strings.TrimPrefix(o.part, sidecarFolder) + ".install"
	case strings.HasPrefix(o.part, "monitoring."):
		return ".Values." + o.part
	case o.part == "node":
		return ".Values.installer.install"
	case o.part != "":
		return ".Values." + o.part + ".install"
	}
	return ""
}

// purposes says what workloads are for whose names do not say it.
var purposes = map[string]string{
	"flexlvm-gc":        ", the node daemon: it reports the nodes' free space, evicts, copies and takes snapshots; docs/reference/gc.md describes its flags",
	"flexlvm-installer": ", which puts the FlexVolume driver on the nodes",
}

// without says what is missing if a workload is not installed.
var without = map[string]string{
	"flexlvm-gc":        ". Without it, nodes report no free space, so no claim is provisioned",
	"flexlvm-installer": ". Without it, only classes with the parameter door: csi work. With csi.install, the provisioner's flag door is then csi by default, for classes without that parameter",
}

// addWorkload replaces fields of a Deployment or a DaemonSet by values, and records their defaults.
func (c *chart) addWorkload(o object, pod map[string]any, m *placeholders) {
	key := strings.TrimPrefix(o.name, "flexlvm-")
	own := ".Values." + key
	w := value{key: key, comment: fmt.Sprintf("The %s %s%s.", o.kind, o.name, purposes[o.name])}
	note := func(field, comment string, defaultValue any, schema map[string]any) string {
		w.group = append(w.group, value{key: field, comment: comment, defaultValue: defaultValue, schema: schema})
		return own + "." + field
	}
	main := container(pod)
	spec := o.fields["spec"].(map[string]any)
	switch {
	case slices.Contains(additionalParts, o.part):
		note("install", "true: install it in addition (docs/doors.md), with the class flexlvm-csi.", false, ofBoolean())
	case o.part != "":
		note("install", fmt.Sprintf("false: do not install it%s.", without[o.name]), true, ofBoolean())
	}
	if replicas, found := spec["replicas"]; found {
		spec["replicas"] = m.in("int " + note("replicas", "Number of pods; one of them works, the others wait.", replicas, map[string]any{"type": "integer", "minimum": 0}))
	}
	if rolling, found := lookup(spec, "updateStrategy", "rollingUpdate").(map[string]any); found {
		rolling["maxUnavailable"] = m.in(note("maxUnavailable", "Maximum number or percentage of nodes on which an upgrade replaces it at the same time.", rolling["maxUnavailable"], map[string]any{"type": []string{"string", "integer"}}))
	}
	c.addFlags(o, main, m, note)
	addPorts(main, m, own+".flags")
	main["imagePullPolicy"] = m.in("$.Values.image.pullPolicy")
	main["resources"] = m.block(note("resources", "Requests and limits of its container.", main["resources"], ofMap()))
	addEnvironment(o, main, m, note)
	pod["priorityClassName"] = m.in(note("priorityClassName", "PriorityClass of its pods.", pod["priorityClassName"], ofString()))
	pod["nodeSelector"] = m.block(note("nodeSelector", "Labels of the nodes that it runs on.", pod["nodeSelector"], ofStrings()))
	pod["tolerations"] = m.block(note("tolerations", "Tolerations of its pods.", pod["tolerations"], ofList()))
	affinity := pod["affinity"]
	if affinity == nil {
		affinity = map[string]any{}
	}
	pod["affinity"] = m.optional(note("affinity", "Affinity of its pods.", affinity, ofMap()))
	metadata := lookup(spec, "template", "metadata").(map[string]any)
	metadata["annotations"] = m.optional(note("podAnnotations", "Additional annotations of its pods.", map[string]any{}, ofStrings()))
	pod["imagePullSecrets"] = m.optional("$.Values.imagePullSecrets")
	c.workloads = append(c.workloads, w)
	if o.name == "flexlvm-provisioner" {
		c.addSidecars(pod, m)
	}
}

// addFlags makes the flags of a program values. Flags with a variable, and the command of a program without
// arguments of its own, are not changed. Where only the CSI driver is installed, the provisioner's default is that driver,
// because pods cannot start with volumes of a driver that no node has.
func (c *chart) addFlags(o object, main map[string]any, m *placeholders, note func(string, string, any, map[string]any) string) {
	field := "args"
	if main[field] == nil {
		field = "command"
	}
	var fixed, order []string
	flags := map[string]any{}
	given, _ := main[field].([]any)
	for _, g := range given {
		arg := g.(string)
		name, value, found := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if field == "command" || !found || strings.Contains(value, "$(") {
			fixed = append(fixed, arg)
			continue
		}
		order = append(order, name)
		flags[name] = value
	}
	fixedList := "(list" + quoted(fixed) + ")"
	if o.name == "flexlvm-provisioner" {
		extend := func(added []string, condition string) {
			fixedList = fmt.Sprintf("(concat %s (ternary (list%s) list %s))", fixedList, quoted(added), condition)
		}
		extend([]string{"--door=csi"}, `(and $.Values.csi.install (not $.Values.installer.install) (kindIs "invalid" (index ($.Values.provisioner.flags | default dict) "door")))`)
		for _, s := range c.from.sidecars {
			extend(s.flags(), anyInstalled(s.key))
		}
	}
	where := note("flags", "Its flags, without the dashes. You may add others; a list repeats a flag once per value, and null removes a flag.", flags, ofFlags())
	main[field] = m.whole(func(indent, key string) string {
		return fmt.Sprintf(`%s%s: {{- include "flexlvm.flags" (dict "fixed" %s "order" (list%s) "flags" %s) | nindent %d }}`,
			indent, key, fixedList, quoted(order), where, len(indent))
	})
}

// addPorts makes the port of metrics the one of the flag address: Prometheus finds it by its name, and in the host's
// network the scheduler reserves it.
func addPorts(main map[string]any, m *placeholders, flags string) {
	ports, _ := main["ports"].([]any)
	for _, p := range ports {
		if port := p.(map[string]any); port["name"] == "http" {
			port["containerPort"] = m.in(fmt.Sprintf(`include "flexlvm.port" (dict "flags" %s "default" %v)`, flags, port["containerPort"]))
		}
	}
}

func quoted(words []string) string {
	var b strings.Builder
	for _, w := range words {
		fmt.Fprintf(&b, " %q", w)
	}
	return b.String()
}

// addEnvironment makes Go's memory limit a value, because it depends on the container's memory limit, and makes the
// node daemon's PLUGIN_DIR empty where the FlexVolume driver is not installed.
func addEnvironment(o object, main map[string]any, m *placeholders, note func(string, string, any, map[string]any) string) {
	env, _ := main["env"].([]any)
	for _, e := range env {
		switch variable := e.(map[string]any); variable["name"] {
		case "GOMEMLIMIT":
			comment := "Memory use above which it collects garbage more often (GOMEMLIMIT); at most four fifths of the memory limit."
			if o.name == "flexlvm-provisioner" {
				comment += " The default is enough for 60,000 volumes. For more, set it to 60MiB plus 2.2KiB per volume, and resources.limits.memory to a quarter more than that."
			}
			variable["value"] = m.in(note("goMemoryLimit", comment, variable["value"], ofPattern("^[0-9]+(Ki|Mi|Gi)?B$")))
		case "PLUGIN_DIR":
			variable["value"] = m.in(`ternary $.Values.pluginDir "" $.Values.installer.install | quote`)
		}
	}
}

// runbookBaseURL is the beginning of each alert's runbook_url.
const runbookBaseURL = "https://github.com/flexlvm/flexlvm/blob/main/"

// addMonitoring adds values for further labels of the Prometheus operator's objects, by which a Prometheus selects
// them, and for further fields of a monitor's endpoint, which are needed if /metrics requires a token. It
// also makes the beginning of each alert's runbook_url a value.
func addMonitoring(o object, m *placeholders) {
	if version, _ := o.fields["apiVersion"].(string); strings.HasPrefix(version, "monitoring.coreos.com/") {
		replaceStrings(o.fields, func(s string) string {
			if path, is := strings.CutPrefix(s, runbookBaseURL); is {
				return m.in("$.Values.monitoring.runbookBaseURL") + path
			}
			return s
		})
		lookup(o.fields, "metadata", "labels").(map[string]any)["zz"] = m.merged("$.Values.monitoring.labels")
	}
	for _, field := range []string{"podMetricsEndpoints", "endpoints"} {
		endpoints, _ := lookup(o.fields, "spec", field).([]any)
		for _, e := range endpoints {
			e.(map[string]any)["zz"] = m.merged("$.Values.monitoring.endpoint")
		}
	}
}

// monitoringValues returns the values for the objects of monitoring/.
func monitoringValues() value {
	return value{key: "monitoring", comment: "Objects for the Prometheus operator, whose CRDs must be installed (docs/alerts.md).", group: []value{
		{key: "alerts", comment: "true: install the alerts, as a PrometheusRule.", defaultValue: false, schema: ofBoolean()},
		{key: "runbookBaseURL", comment: "Base URL of the alerts' runbook_url, to which docs/alerts.md is appended.", defaultValue: runbookBaseURL, schema: ofPattern("^https?://[^ ]+/$")},
		{key: "podMonitor", comment: "true: install a PodMonitor, with which Prometheus scrapes the daemons.", defaultValue: false, schema: ofBoolean()},
		{key: "serviceMonitor", comment: "true: install a ServiceMonitor, for a Prometheus that supports only those.", defaultValue: false, schema: ofBoolean()},
		{key: "dashboard", comment: "true: install the dashboard, as a ConfigMap that Grafana's sidecar finds.", defaultValue: false, schema: ofBoolean()},
		{key: "labels", comment: "Additional labels of the PrometheusRule and the monitors, by which your Prometheus selects them: {release: NAME} for kube-prometheus-stack.", defaultValue: map[string]any{}, schema: ofStrings()},
		{key: "endpoint", comment: "Additional fields of the monitors' endpoint, such as scheme, tlsConfig and authorization.", defaultValue: map[string]any{}, schema: ofMap()},
	}}
}

// values returns all values of the chart.
func (c *chart) values() []value {
	repository, _, _ := strings.Cut(c.from.image, ":")
	all := []value{
		{key: "image", comment: "The image of all programs. The default is in no registry: see docs/install.md.", group: []value{
			{key: "repository", comment: "Its name, without the tag.", defaultValue: repository, schema: ofPattern("^[^@ ]+$")},
			{key: "tag", comment: "Its tag; empty: the chart's release.", defaultValue: "", schema: ofPattern("^[A-Za-z0-9_.-]*$")},
			{key: "digest", comment: "Its digest, as sha256:..., which takes precedence over the tag; `make push` prints it.", defaultValue: "", schema: ofPattern("^(sha256:[0-9a-f]{64})?$")},
			{key: "pullPolicy", comment: "When nodes pull the image.", defaultValue: "IfNotPresent", schema: map[string]any{"type": "string", "enum": []string{"IfNotPresent", "Always", "Never"}}},
		}},
		{key: "imagePullSecrets", comment: "Secrets in the namespace with the credentials of registries, as [{name: ...}].", defaultValue: []any{}, schema: ofList()},
		{key: "pluginDir", comment: "kubelet's directory of volume plugins. docs/install.md lists those of distributions.", defaultValue: c.from.pluginDir, schema: ofPattern("^/")},
		{key: "namespace", comment: "The namespace flexlvm-system. Its name cannot be changed: policies and programs rely on it. It is not deleted when the release is uninstalled.", group: []value{
			{key: "create", comment: "false: it exists already, and admits privileged pods.", defaultValue: true, schema: ofBoolean()},
		}},
		{key: "crds", comment: "The CRDs of LocalVolume, NodeStorage, VolumeDiscovery, VolumeGroup and VolumeManager. They are upgraded with the release, and are not deleted when it is uninstalled.", group: []value{
			{key: "install", comment: "false: they are installed and upgraded by other means.", defaultValue: true, schema: ofBoolean()},
		}},
		{key: "storageClasses", comment: "The classes flexlvm and flexlvm-dataset, and flexlvm-csi with the CSI driver.", group: []value{
			{key: "install", comment: "false: you create your own (docs/storageclass.md).", defaultValue: true, schema: ofBoolean()},
		}},
	}
	all = append(append(all, c.workloads...), monitoringValues())
	return append(all, value{key: "test", comment: "The pod of `helm test`, which writes to a volume and reads the data back; with csi.install another pod does the same through the CSI driver.", group: []value{
		{key: "image", comment: "Image with a shell, cat and df.", defaultValue: "busybox:1.36", schema: ofString()},
		{key: "storageClass", comment: "StorageClass of its volume.", defaultValue: "flexlvm", schema: ofString()},
		{key: "size", comment: "Size of its volume.", defaultValue: "64Mi", schema: ofString()},
	}})
}

// files returns the generated files of the chart.
func (c *chart) files() (map[string]string, error) {
	values := c.values()
	var b strings.Builder
	b.WriteString(notice + "\n")
	if err := writeValues(&b, values, ""); err != nil {
		return nil, err
	}
	schema, err := writeSchema(values)
	if err != nil {
		return nil, err
	}
	files := map[string]string{
		"values.yaml":        b.String(),
		"values.schema.json": schema,
		"Chart.yaml": notice + fmt.Sprintf(`apiVersion: v2
name: flexlvm
description: Local volumes of exactly the requested size, created by LVM on the node where the pod runs
type: application
home: https://github.com/flexlvm/flexlvm
sources: [https://github.com/flexlvm/flexlvm]
version: %s
appVersion: %s
kubeVersion: ">=1.30.0-0"
`, strings.TrimPrefix(c.version, "v"), c.version),
	}
	for name, text := range c.templates {
		files[name] = text
	}
	return files, nil
}
