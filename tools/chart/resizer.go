package main

import (
	"fmt"
	"strings"
)

// What a patch of the resizer adds to.
const (
	toContainer  = "/spec/template/spec/containers/0/"
	toPod        = "/spec/template/spec/"
	toArgs       = toContainer + "args/-"
	toContainers = toPod + "containers/-"
)

// resizerFlags are those that the provisioner has where there is a resizer.
func (c *chart) resizerFlags(o object) (out []string) {
	for _, p := range c.from.resizer {
		if flag, is := p.Value.(string); is && p.Path == toArgs && o.name == "flexlvm-provisioner" {
			out = append(out, flag)
		}
	}
	return out
}

// addResizer puts what the component of the resizer adds into the pod of the provisioner, on
// the condition that it is wanted, and notes its values.
func (c *chart) addResizer(pod map[string]any, m *marks) {
	w := value{key: "resizer", comment: "CSI's resizer beside the provisioner: VolumeAttributesClasses for claims in use (docs/io-limits.md)."}
	w.group = append(w.group, value{key: "install", comment: "true: install it, from Kubernetes 1.34 on.", preset: false, schema: ofBoolean()})
	main := container(pod)
	for _, p := range c.from.resizer {
		switch {
		case p.Op != "add":
			panic("a patch of the resizer does more than add: " + p.Op)
		case p.Path == toArgs: // see resizerFlags
		case p.Path == toContainers:
			sidecar := p.Value.(map[string]any)
			w.group = append(w.group,
				value{key: "image", comment: "Its image, with the tag.", preset: sidecar["image"], schema: ofPattern("^[^ ]+$")},
				value{key: "resources", comment: "What its container asks for, and its limits.", preset: sidecar["resources"], schema: ofMap()})
			var own marks
			sidecar["image"] = own.in("$.Values.resizer.image")
			sidecar["imagePullPolicy"] = own.in("$.Values.image.pullPolicy")
			sidecar["resources"] = own.block("$.Values.resizer.resources")
			pod["containers"] = append(pod["containers"].([]any), map[string]any{"resizer": m.whole(wanted([]any{sidecar}, &own))})
		case strings.HasPrefix(p.Path, toContainer):
			field := strings.TrimPrefix(p.Path, toContainer)
			main[field] = m.whole(wanted(map[string]any{field: p.Value}, new(marks)))
		case strings.HasPrefix(p.Path, toPod):
			field := strings.TrimPrefix(p.Path, toPod)
			pod[field] = m.whole(wanted(map[string]any{field: p.Value}, new(marks)))
		default:
			panic("the chart does not know what the resizer adds to " + p.Path)
		}
	}
	c.workloads = append(c.workloads, w)
}

// wanted writes what is there only with the resizer, in the place of a mark.
func wanted(added any, own *marks) func(indent, key string) string {
	return func(indent, _ string) string {
		text, err := marked(added)
		if err != nil {
			panic(err) // it was read from YAML
		}
		width := strings.Repeat(" ", len(strings.TrimSuffix(indent, "- ")))
		var b strings.Builder
		for line := range strings.Lines(text) {
			b.WriteString(width + line)
		}
		return fmt.Sprintf("%[1]s{{- if $.Values.resizer.install }}\n%[2]s%[1]s{{- end }}", width, own.fill(b.String()))
	}
}
