package main

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// The paths that a sidecar's patch may add to.
const (
	toContainer  = "/spec/template/spec/containers/0/"
	toPod        = "/spec/template/spec/"
	toArgs       = toContainer + "args/-"
	toContainers = toPod + "containers/-"
)

// sidecarFolder is the folder of the components that add a CSI sidecar to the provisioner.
const sidecarFolder = "csi/"

// A sidecar is the component of a CSI sidecar.
type sidecar struct {
	key     string // the key of its values, and its folder in sidecarFolder
	comment string
	install string  // the comment of the value that installs it
	patches []patch // additions to the provisioner
}

// knownSidecars returns all sidecars.
func knownSidecars() []sidecar {
	return []sidecar{
		{key: "resizer", comment: "The sidecar csi-resizer of the provisioner, for VolumeAttributesClasses of claims in use (docs/io-limits.md).", install: "true: install it; it needs Kubernetes 1.34 or later."},
		{key: "snapshotter", comment: "The sidecar csi-snapshotter of the provisioner, for VolumeSnapshots (docs/snapshots.md).", install: "true: install it; it needs the CRDs of snapshots and the snapshot controller."},
	}
}

// anyInstalled returns the condition that at least one of these sidecars is installed.
func anyInstalled(keys ...string) string {
	var all []string
	for _, key := range keys {
		all = append(all, "$.Values."+key+".install")
	}
	if len(all) == 1 {
		return all[0]
	}
	return "or " + strings.Join(all, " ")
}

// flags returns the flags that the sidecar adds to the provisioner.
func (s sidecar) flags() (out []string) {
	for _, p := range s.patches {
		if flag, is := p.Value.(string); is && p.Path == toArgs {
			out = append(out, flag)
		}
	}
	return out
}

// A sharedField is a pod field, other than the sidecars' own containers, to which sidecars add the same value.
type sharedField struct {
	path  string
	value any
	keys  []string // of the sidecars
}

// addSidecars adds the sidecars' parts to the provisioner's pod, under the condition that the sidecars are
// installed, and records their values.
func (c *chart) addSidecars(pod map[string]any, m *placeholders) {
	main := container(pod) // before other containers are added
	var shared []sharedField
	for _, s := range c.from.sidecars {
		w := value{key: s.key, comment: s.comment}
		w.group = append(w.group, value{key: "install", comment: s.install, defaultValue: false, schema: ofBoolean()})
		for _, p := range s.patches {
			switch {
			case p.Op != "add":
				panic("a patch of the " + s.key + " does more than add: " + p.Op)
			case p.Path == toArgs: // see flags
			case p.Path == toContainers:
				w.group = append(w.group, s.addContainer(pod, p.Value.(map[string]any), m)...)
			default:
				shared = share(shared, s.key, p)
			}
		}
		c.workloads = append(c.workloads, w)
	}
	for _, f := range shared {
		to, field := pod, strings.TrimPrefix(f.path, toPod)
		if strings.HasPrefix(f.path, toContainer) {
			to, field = main, strings.TrimPrefix(f.path, toContainer)
		} else if !strings.HasPrefix(f.path, toPod) {
			panic("the chart does not know what a sidecar adds to " + f.path)
		}
		to[field] = m.whole(conditional(anyInstalled(f.keys...), map[string]any{field: f.value}, new(placeholders)))
	}
}

func share(shared []sharedField, key string, p patch) []sharedField {
	i := slices.IndexFunc(shared, func(f sharedField) bool { return f.path == p.Path })
	if i < 0 {
		return append(shared, sharedField{p.Path, p.Value, []string{key}})
	}
	if !reflect.DeepEqual(shared[i].value, p.Value) {
		panic("the sidecars add different things to " + p.Path)
	}
	shared[i].keys = append(shared[i].keys, key)
	return shared
}

// addContainer adds the sidecar's container to the pod, and returns its values.
func (s sidecar) addContainer(pod, content map[string]any, m *placeholders) []value {
	values := []value{
		{key: "image", comment: "Its image, with the tag.", defaultValue: content["image"], schema: ofPattern("^[^ ]+$")},
		{key: "resources", comment: "Requests and limits of its container.", defaultValue: content["resources"], schema: ofMap()},
	}
	var own placeholders
	content["image"] = own.in("$.Values." + s.key + ".image")
	content["imagePullPolicy"] = own.in("$.Values.image.pullPolicy")
	content["resources"] = own.block("$.Values." + s.key + ".resources")
	pod["containers"] = append(pod["containers"].([]any), map[string]any{s.key: m.whole(conditional(anyInstalled(s.key), []any{content}, &own))})
	return values
}

// conditional returns the replacement for a placeholder: the part, under a condition.
func conditional(condition string, added any, own *placeholders) func(indent, key string) string {
	return func(indent, _ string) string {
		text, err := withPlaceholders(added)
		if err != nil {
			panic(err) // it was parsed from YAML
		}
		width := strings.Repeat(" ", len(strings.TrimSuffix(indent, "- ")))
		var b strings.Builder
		for line := range strings.Lines(text) {
			b.WriteString(width + line)
		}
		return fmt.Sprintf("%[1]s{{- if %[3]s }}\n%[2]s%[1]s{{- end }}", width, own.fill(b.String()), condition)
	}
}
