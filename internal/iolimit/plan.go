package iolimit

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A podVolume is a volume that is mounted for one pod.
type podVolume struct {
	pod    string // UID
	pv     string
	device uint64 // as in stat's st_rdev
}

// A limitChange is a write that gives a pod the desired limits on a volume.
type limitChange struct {
	podVolume
	limits volume.IOLimits // all of them; 0 removes one
}

// readLimits parses the limits that PersistentVolumes declare, by name: zero if there are none, or
// why they cannot be parsed.
func readLimits(volumes []persistentvolume.Volume) (limits map[string]volume.IOLimits, unreadable map[string]error) {
	limits, unreadable = make(map[string]volume.IOLimits, len(volumes)), map[string]error{}
	for i := range volumes {
		l, err := volume.ParseIOLimits(pv.AnnotationIOLimits, volumes[i].IOLimits)
		if err == nil && volumes[i].Shape.DirectoryPool != "" {
			if !l.IsZero() {
				unreadable[volumes[i].PV] = fmt.Errorf("%s: layout %q has no limits on IO, as its volumes share one device; remove it", pv.AnnotationIOLimits, volume.Directory)
			}
			continue
		}
		if err != nil {
			unreadable[volumes[i].PV] = fmt.Errorf("%w; until it is corrected, the current limits stay", err)
			continue
		}
		limits[volumes[i].PV] = l
	}
	return limits, unreadable
}

// podVolumes returns the volumes in limits that are mounted for pods, by pod and name.
func podVolumes(mounts map[uint64][]mount.Point, limits map[string]volume.IOLimits) []podVolume {
	var out []podVolume
	for device, points := range mounts {
		for _, p := range points {
			pod, name, is := podPath(p.Path)
			if is = is && ofVolumes(p.Type); !is {
				pod, name, is = podDevice(p.Path)
			}
			if _, ours := limits[name]; is && ours {
				out = append(out, podVolume{pod: pod, pv: name, device: device})
			}
		}
	}
	slices.SortFunc(out, func(a, b podVolume) int {
		return cmp.Or(cmp.Compare(a.pod, b.pod), cmp.Compare(a.pv, b.pv), cmp.Compare(a.device, b.device))
	})
	return slices.Compact(out)
}

// ofVolumes reports whether volumes are formatted with this kind of file system.
func ofVolumes(fsType string) bool {
	_, err := volume.ParseFSType("the kind of a file system", fsType)
	return err == nil
}

// podPath splits a path at which the kubelet may have mounted a flexlvm volume: <its
// root>/pods/<UID>/volumes/flexlvm.io~flexlvm/<PersistentVolume>, or <its
// root>/pods/<UID>/volumes/kubernetes.io~csi/<PersistentVolume>/mount, which any CSI driver's
// volume may have.
func podPath(path string) (pod, name string, is bool) {
	parts := strings.Split(path, "/")
	if pod, name, is = ofPlugin(parts, strings.ReplaceAll(pv.Driver, "/", "~")); is {
		return pod, name, is
	}
	if last := len(parts) - 1; parts[last] == "mount" {
		return ofPlugin(parts[:last], "kubernetes.io~csi")
	}
	return "", "", false
}

// podDevice is podPath for a raw block volume:
// <its root>/plugins/kubernetes.io/csi/volumeDevices/publish/<PersistentVolume>/<UID>.
func podDevice(path string) (pod, name string, is bool) {
	parts := strings.Split(path, "/")
	n := len(parts)
	if n < 8 || !slices.Equal(parts[n-7:n-2], []string{"plugins", "kubernetes.io", "csi", "volumeDevices", "publish"}) {
		return "", "", false
	}
	return parts[n-1], parts[n-2], true
}

func ofPlugin(parts []string, plugin string) (pod, name string, is bool) {
	n := len(parts)
	if n < 6 || parts[n-5] != "pods" || parts[n-3] != "volumes" || parts[n-2] != plugin {
		return "", "", false
	}
	return parts[n-4], parts[n-1], true
}

// limitChanges returns the writes that give each pod the desired limits: one for each difference
// from there, the limits of pods' groups by device. Pods that are not in there, and devices of
// others, are left alone. If two PersistentVolumes lead a pod to one device, the first counts.
func limitChanges(mounted []podVolume, limits map[string]volume.IOLimits, there map[string]map[uint64]volume.IOLimits) []limitChange {
	type target struct {
		pod    string
		device uint64
	}
	var out []limitChange
	done := map[target]bool{}
	for _, m := range mounted {
		has, known := there[m.pod]
		if t := (target{m.pod, m.device}); known && !done[t] {
			done[t] = true
			if want := limits[m.pv]; has[m.device] != want {
				out = append(out, limitChange{m, want})
			}
		}
	}
	return out
}
