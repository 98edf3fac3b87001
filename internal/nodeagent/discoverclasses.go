package nodeagent

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/discovery"
	"github.com/flexlvm/flexlvm/internal/diskid"
)

// A discoveryView is what one scan has observed of the classes of this node.
type discoveryView struct {
	of      string            // version of the VolumeDiscovery
	classes []discovery.Class // those that were scanned
	found   []discovery.Found
	// unseen is why a class, by its name, was not scanned. That holds up the disks of this class, and no
	// others.
	unseen      map[string]error
	directories map[string]string // of the classes in unseen
}

// view scans the directories of the classes that select this node.
func (s *discoverer) view(ctx context.Context, spec *flexlvmv1.VolumeDiscovery, volumes map[string]*corev1.PersistentVolume) (discoveryView, error) {
	out := discoveryView{unseen: map[string]error{}, directories: map[string]string{}}
	if spec == nil {
		return out, nil
	}
	out.of = spec.Version()
	self, err := s.self(ctx, out.of, volumes)
	if err != nil {
		return out, err
	}
	classes := out.selected(spec, self)
	out.refuseNested(classes)
	classes = slices.DeleteFunc(classes, out.isUnseen)
	found, unseen, err := s.disks.Find(ctx, classes)
	if err != nil {
		return out, err
	}
	for _, c := range classes {
		if why := unseen[c.Name]; why != nil {
			out.hide(c, why)
		}
	}
	out.found, out.classes = found, slices.DeleteFunc(classes, out.isUnseen)
	return out, nil
}

// A seenNode has this node's labels as read for a version of the VolumeDiscovery.
type seenNode struct {
	labels map[string]string
	of     string
	at     time.Time
}

// self returns this node's labels. Scans may follow one another every two seconds, as pods mount, so they
// are read at most once a minute, unless the VolumeDiscovery has changed or a disk may have to be cleaned. The
// provisioner itself checks whether a class selects the node that offers a disk.
func (s *discoverer) self(ctx context.Context, of string, volumes map[string]*corev1.PersistentVolume) (map[string]string, error) {
	now := s.d.cfg.Now()
	since := now.Sub(s.seen.at)
	if s.seen.of == of && since >= 0 && since < discoverEvery && !anyToClean(volumes) {
		return s.seen.labels, nil
	}
	labels, err := s.d.api.NodeLabels(ctx, s.d.cfg.Node)
	if err != nil {
		s.seen = seenNode{}
		return nil, err
	}
	s.seen = seenNode{labels, of, now}
	return labels, nil
}

// anyToClean reports whether a PersistentVolume has the policy Delete and is in a phase in which its disk may have to
// be cleaned.
func anyToClean(volumes map[string]*corev1.PersistentVolume) bool {
	for _, v := range volumes {
		deletes := v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
		if deletes && v.Status.Phase != corev1.VolumeBound && v.Status.Phase != corev1.VolumeAvailable {
			return true
		}
	}
	return false
}

func (v *discoveryView) isUnseen(c discovery.Class) bool { return v.unseen[c.Name] != nil }

func (v *discoveryView) hide(c discovery.Class, why error) {
	v.unseen[c.Name], v.directories[c.Name] = why, c.Directory
}

// selected returns the valid classes that select this node, and hides invalid ones.
func (v *discoveryView) selected(spec *flexlvmv1.VolumeDiscovery, self map[string]string) (out []discovery.Class) {
	for i := range spec.Spec.Classes {
		c := &spec.Spec.Classes[i]
		selects, err := c.Selects(self)
		if err != nil {
			err = fmt.Errorf("nodeSelector: %w", err)
		} else if selects {
			err = c.Check()
		}
		if err != nil {
			v.hide(classOf(c), fmt.Errorf("VolumeDiscovery: class %s: %w", c.StorageClassName, err))
			continue
		}
		if selects {
			out = append(out, classOf(c))
		}
	}
	return out
}

// refuseNested hides classes whose directories contain one another, because a disk in both belongs to neither
// alone.
func (v *discoveryView) refuseNested(classes []discovery.Class) {
	for i, one := range classes {
		for _, other := range classes[:i] {
			if !diskid.Within(one.Directory, other.Directory) && !diskid.Within(other.Directory, one.Directory) {
				continue
			}
			why := fmt.Errorf("VolumeDiscovery: classes %s and %s have directories %s and %s on this node, one of which contains the other; give each class its own directory", other.Name, one.Name, other.Directory, one.Directory)
			v.hide(one, why)
			v.hide(other, why)
		}
	}
}

// whyUnseen returns why classes were not scanned; empty if all were.
func (v *discoveryView) whyUnseen() string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(v.unseen)) {
		out = append(out, fmt.Sprintf("class %s of the VolumeDiscovery cannot be examined: %v", name, v.unseen[name]))
	}
	return strings.Join(out, "; ")
}

// withUnseen adds the classes that were not scanned, by their directories.
func (v *discoveryView) withUnseen(shown []flexlvmv1.Discovered) []flexlvmv1.Discovered {
	for _, name := range slices.Sorted(maps.Keys(v.unseen)) {
		at := v.directories[name]
		if slices.ContainsFunc(shown, func(one flexlvmv1.Discovered) bool { return one.Path == at }) {
			continue // paths are the keys of the list
		}
		shown = append(shown, flexlvmv1.Discovered{
			Path: at, StorageClassName: name, State: flexlvmv1.DiscoveredRefused, Message: clip(v.unseen[name].Error(), maxReason),
		})
	}
	return shown
}

// announceUnseen announces which classes cannot be scanned, and why.
func (s *discoverer) announceUnseen(ctx context.Context, v discoveryView) {
	for _, c := range v.classes {
		s.d.dedupe.end("discover class " + c.Name)
	}
	for name, why := range v.unseen {
		if !s.d.dedupe.note("discover class "+name, why.Error(), s.d.cfg.Now()) {
			continue
		}
		klog.FromContext(ctx).Error(why, "A class of the VolumeDiscovery cannot be examined; it is retried", "class", name)
		s.d.events.onNode(warning, "DiscoveryFailed", fmt.Sprintf("class %s of the VolumeDiscovery cannot be examined, so none of its disks are offered or cleaned: %v; it is retried", name, why))
	}
}

// storageClass returns the name of the found disk's class, or else of its PersistentVolume's.
func (c *discoveredCase) storageClass() string {
	if c.found != nil {
		return c.found.Class
	}
	return c.object.Spec.StorageClassName
}

// classOf returns which disks a class discovers and how they are cleaned. An unknown value means that nothing
// is cleaned.
func classOf(c *flexlvmv1.DiscoveryClass) discovery.Class {
	out := discovery.Class{
		Name: c.StorageClassName, Directory: path.Clean(c.Directory), Pattern: c.NamePattern,
		Block: c.VolumeMode == string(corev1.PersistentVolumeBlock),
		Files: c.CleanFilesystem == "" || c.CleanFilesystem == flexlvmv1.CleanDeleteFiles,
	}
	switch c.Directories {
	case flexlvmv1.DirectoriesBindMounts:
		out.Sharing = discovery.BindMounts
	case flexlvmv1.DirectoriesAll:
		out.Sharing = discovery.AllDirectories
	}
	switch c.CleanDevice {
	case "", flexlvmv1.CleanZero:
		out.Device = discovery.Zero
	case flexlvmv1.CleanDiscard:
		out.Device = discovery.Discard
	default:
		out.Device = discovery.KeepDevice
	}
	return out
}

// discoveredStates are the states of a discovered disk.
var discoveredStates = []flexlvmv1.DiscoveredState{
	flexlvmv1.DiscoveredReady, flexlvmv1.DiscoveredProvided, flexlvmv1.DiscoveredCleaning, flexlvmv1.DiscoveredCleaned,
	flexlvmv1.DiscoveredKept, flexlvmv1.DiscoveredRefused, flexlvmv1.DiscoveredMissing,
}

func (m *Metrics) discovered(all []flexlvmv1.Discovered) {
	count := map[flexlvmv1.DiscoveredState]int{}
	for _, one := range all {
		count[one.State]++
	}
	for _, state := range discoveredStates {
		m.found.WithLabelValues(string(state)).Set(float64(count[state]))
	}
}
