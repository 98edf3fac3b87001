// Package staticconfig translates the configuration of the static provisioner for local volumes
// (kubernetes-sigs/sig-storage-local-static-provisioner) into a VolumeDiscovery.
package staticconfig

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// config has the keys of the ConfigMap, with the static provisioner's names and meanings.
type config struct {
	Classes        map[string]class       `json:"storageClassMap"`
	NodeLabels     []string               `json:"nodeLabelsForPV"`
	Labels         flexlvmv1.VolumeLabels `json:"labelsForPV"`
	AlphaAPI       any                    `json:"useAlphaAPI"`
	Jobs           any                    `json:"useJobForCleaning"`
	JobTolerations []corev1.Toleration    `json:"jobTolerations"`
	Resync         string                 `json:"minResyncPeriod"`
	NodeNameOnly   any                    `json:"useNodeNameOnly"`
	OwnerRef       any                    `json:"setPVOwnerRef"`
	RemoveTaint    any                    `json:"removeNodeNotReadyTaint"`
	NotReadyTaint  string                 `json:"provisionerNotReadyNodeTaintKey"`
}

// class has the fields of a class in storageClassMap.
type class struct {
	HostDir     string                    `json:"hostDir"`
	MountDir    string                    `json:"mountDir"`
	Cleaner     []string                  `json:"blockCleanerCommand"`
	VolumeMode  string                    `json:"volumeMode"`
	AccessMode  string                    `json:"accessMode"`
	FSType      string                    `json:"fsType"`
	NamePattern string                    `json:"namePattern"`
	Selector    []corev1.NodeSelectorTerm `json:"selector"`
}

// A Result is a translated configuration.
type Result struct {
	Discovery *flexlvmv1.VolumeDiscovery
	// Notes are the differences, for people: one for each field that is not translated literally.
	Notes []string
}

// Read translates the static provisioner's ConfigMap, given as YAML. Its error names every field that cannot be
// translated, with its value and what to do.
func Read(text []byte) (Result, error) {
	var object corev1.ConfigMap
	if err := yaml.UnmarshalStrict(text, &object); err != nil {
		return Result{}, fmt.Errorf("read the ConfigMap: %w", err)
	}
	if object.Kind != "ConfigMap" {
		return Result{}, fmt.Errorf("read the ConfigMap: kind is %q; give the ConfigMap of the static provisioner, as `kubectl get configmap NAME -o yaml` prints it", object.Kind)
	}
	if object.Data["storageClassMap"] == "" {
		return Result{}, errors.New("read the ConfigMap: data.storageClassMap is missing; give the ConfigMap of the static provisioner")
	}
	c, err := parse(object.Data)
	if err != nil {
		return Result{}, err
	}
	return c.translate()
}

// parse reads the values of a ConfigMap, each of which is a YAML document of its own.
func parse(data map[string]string) (config, error) {
	var all strings.Builder
	for _, key := range slices.Sorted(maps.Keys(data)) {
		fmt.Fprintf(&all, "%s:\n", key)
		for line := range strings.Lines(data[key]) {
			all.WriteString("  " + strings.TrimRight(line, "\n") + "\n")
		}
	}
	var c config
	if err := yaml.UnmarshalStrict([]byte(all.String()), &c); err != nil {
		return c, fmt.Errorf("read the ConfigMap: %w; correct it, or remove fields that the static provisioner does not know either", err)
	}
	return c, nil
}

// A translation collects the errors and the differences.
type translation struct {
	problems []error
	notes    []string
}

func (t *translation) refuse(format string, args ...any) {
	t.problems = append(t.problems, fmt.Errorf(format, args...))
}

func (t *translation) note(format string, args ...any) {
	t.notes = append(t.notes, fmt.Sprintf(format, args...))
}

func (c config) translate() (Result, error) {
	t := &translation{}
	c.settings(t)
	out := &flexlvmv1.VolumeDiscovery{
		TypeMeta:   metav1.TypeMeta{APIVersion: flexlvmv1.GroupVersion.String(), Kind: "VolumeDiscovery"},
		ObjectMeta: metav1.ObjectMeta{Name: flexlvmv1.VolumeDiscoveryName},
	}
	for _, name := range slices.Sorted(maps.Keys(c.Classes)) {
		one := c.Classes[name].translate(t, name)
		one.Labels, one.NodeLabels = c.Labels, c.NodeLabels
		out.Spec.Classes = append(out.Spec.Classes, one)
	}
	if err := errors.Join(t.problems...); err != nil {
		return Result{}, fmt.Errorf("translate the ConfigMap: %w", err)
	}
	return Result{Discovery: out, Notes: t.notes}, nil
}

// settings checks the settings that apply to all classes.
func (c config) settings(t *translation) {
	if yes(t, "useAlphaAPI", c.AlphaAPI) {
		t.refuse("useAlphaAPI is true: node affinity has been a field since Kubernetes 1.10; remove it")
	}
	if yes(t, "setPVOwnerRef", c.OwnerRef) {
		t.refuse("setPVOwnerRef is true: flexlvm does not delete PersistentVolumes with their Node, because a Node that is deleted by mistake would take the binding of every claim with it; remove it, and delete the PersistentVolumes of a node that is permanently gone by hand")
	}
	if yes(t, "removeNodeNotReadyTaint", c.RemoveTaint) {
		t.refuse("removeNodeNotReadyTaint is true: flexlvm removes no taints; remove it, and the taint %q from new nodes: no pod goes to a node that has no PersistentVolume for its claim", c.NotReadyTaint)
	} else if c.NotReadyTaint != "" {
		t.note("provisionerNotReadyNodeTaintKey %q is left out: it has no effect without removeNodeNotReadyTaint", c.NotReadyTaint)
	}
	if yes(t, "useJobForCleaning", c.Jobs) {
		t.note("useJobForCleaning: the node daemon itself cleans disks, at --wipe-rate and --delete-rate; there are no Jobs")
	}
	if len(c.JobTolerations) > 0 {
		t.note("jobTolerations are left out: there are no Jobs")
	}
	if yes(t, "useNodeNameOnly", c.NodeNameOnly) {
		t.note("useNodeNameOnly: PersistentVolumes name their node by its name in the label %s, always", flexlvmv1.LabelDiscoveredOn)
	}
	if c.Resync != "" {
		t.note("minResyncPeriod %s is left out: disks are discovered each minute, and immediately when something is mounted", c.Resync)
	}
}

// translate returns a class's DiscoveryClass. It reports its fields through refuse and note.
func (c class) translate(t *translation, name string) flexlvmv1.DiscoveryClass {
	at := "storageClassMap." + name + "."
	out := flexlvmv1.DiscoveryClass{
		StorageClassName: name, Directory: strings.TrimRight(c.HostDir, "/"), NamePattern: c.NamePattern, FSType: c.FSType,
		VolumeMode: c.VolumeMode, AccessMode: c.AccessMode, CleanFilesystem: flexlvmv1.CleanDeleteFiles,
		// Unlike the static provisioner, flexlvm distinguishes bind mounts of directories from mounts of file
		// systems.
		Directories: flexlvmv1.DirectoriesBindMounts,
	}
	if !strings.HasPrefix(c.HostDir, "/") || strings.Count(out.Directory, "/") < 2 {
		t.refuse("%shostDir is %q; give an absolute path at least two levels deep, such as /mnt/disks", at, c.HostDir)
	}
	if strings.TrimRight(c.MountDir, "/") != out.Directory {
		t.note("%smountDir %s is left out: the node daemon uses the host's own directories", at, c.MountDir)
	}
	switch c.VolumeMode {
	case "":
		out.VolumeMode = string(corev1.PersistentVolumeFilesystem)
	case string(corev1.PersistentVolumeFilesystem):
	case string(corev1.PersistentVolumeBlock):
		out.Directories = ""
	default:
		t.refuse("%svolumeMode is %q; give Filesystem or Block", at, c.VolumeMode)
	}
	switch corev1.PersistentVolumeAccessMode(c.AccessMode) {
	case "":
		out.AccessMode = string(corev1.ReadWriteOnce)
	case corev1.ReadWriteOnce, corev1.ReadWriteOncePod:
	default:
		t.refuse("%saccessMode is %q, but a disk is on one node; give ReadWriteOnce or ReadWriteOncePod", at, c.AccessMode)
	}
	out.CleanDevice = cleaner(t, at+"blockCleanerCommand", c.Cleaner)
	if len(c.Selector) > 0 {
		out.NodeSelector = selectorOf(t, at+"selector", c.Selector)
	}
	return out
}

// cleaner returns the cleanDevice value that replaces a command of the static provisioner's image.
func cleaner(t *translation, field string, command []string) string {
	if len(command) == 0 {
		t.note("%s is not set and defaults to /scripts/quick_reset.sh, which leaves data on the disk; cleanDevice is set to Zero, which takes longer", field)
		return flexlvmv1.CleanZero
	}
	switch command[0] {
	case "/scripts/dd_zero.sh":
		if len(command) > 1 && command[1] != "1" {
			t.note("%s: the disk is zeroed once, not %s times", field, command[1])
		}
		return flexlvmv1.CleanZero
	case "/scripts/blkdiscard.sh":
		return flexlvmv1.CleanDiscard
	case "/scripts/quick_reset.sh":
		t.note("%s: /scripts/quick_reset.sh leaves data on the disk; cleanDevice is set to Zero, which takes longer", field)
		return flexlvmv1.CleanZero
	case "/scripts/shred.sh":
		t.note("%s: the disk is zeroed once, and not overwritten with random data", field)
		return flexlvmv1.CleanZero
	}
	t.refuse("%s is %s: flexlvm runs no user-supplied program as root on a node; give /scripts/dd_zero.sh or /scripts/blkdiscard.sh, or remove it and set cleanDevice: Keep, and clean by hand", field, strconv.Quote(strings.Join(command, " ")))
	return ""
}

// selectorOf converts a node selector, which must be one term by labels, to a label selector.
func selectorOf(t *translation, field string, terms []corev1.NodeSelectorTerm) *metav1.LabelSelector {
	if len(terms) > 1 {
		t.refuse("%s has %d terms, of which a node has to match one; give one term", field, len(terms))
		return nil
	}
	if len(terms[0].MatchFields) > 0 {
		t.refuse("%s has matchFields; give matchExpressions by labels", field)
		return nil
	}
	out := &metav1.LabelSelector{}
	for _, e := range terms[0].MatchExpressions {
		switch e.Operator {
		case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn, corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
			out.MatchExpressions = append(out.MatchExpressions, metav1.LabelSelectorRequirement{Key: e.Key, Operator: metav1.LabelSelectorOperator(e.Operator), Values: e.Values})
		default:
			t.refuse("%s: operator %s of %s; give In, NotIn, Exists or DoesNotExist", field, e.Operator, e.Key)
		}
	}
	t.note("%s: it selects the nodes on which volumes are discovered; each PersistentVolume is tied to its one node", field)
	return out
}

// yes parses a boolean as the static provisioner does, also from a string.
func yes(t *translation, field string, value any) bool {
	switch v := value.(type) {
	case nil:
		return false
	case bool:
		return v
	case string:
		switch strings.ToLower(v) {
		case "true", "yes", "on":
			return true
		case "", "false", "no", "off":
			return false
		}
	}
	t.refuse("%s is %v; give true or false", field, value)
	return false
}
