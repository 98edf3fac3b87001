package nodeagent_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/discovery"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
)

func (f *fakeDisks) Resolve(_ context.Context, paths []string) (out []discovery.Place) {
	f.with(func() {
		for _, at := range paths {
			one, there := f.places[at]
			if !there {
				one.Resolved = at
			}
			one.Path = at
			out = append(out, one)
		}
	})
	return out
}

// byHand is a PersistentVolume that another program or a person has created.
func byHand(source corev1.PersistentVolumeSource, hostname string) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "by-hand", UID: "uid-by-hand"},
		Spec:       corev1.PersistentVolumeSpec{PersistentVolumeSource: source}, Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
	if hostname != "" {
		v.Spec.NodeAffinity = persistentvolume.NodeAffinity(hostname)
	}
	return v
}

func atHostPath(path string) corev1.PersistentVolumeSource {
	return corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}
}

func atLocal(path string) corev1.PersistentVolumeSource {
	return corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}}
}

// asFilesystemOn7 is a file system that is found with the number of its device.
func asFilesystemOn7() discovery.Found {
	f := asFilesystem
	f.Number, f.Root = 7, "/"
	return f
}

// foreignVolumes are PersistentVolumes of other programs, and whether they have the file system that is found.
var foreignVolumes = map[string]struct {
	volume *corev1.PersistentVolume
	at     discovery.Place
	says   string // empty: it has not
}{
	"a hostPath":             {byHand(atHostPath("/mnt/fast/a"), ""), discovery.Place{}, "has this disk, a part of it, or what it is a part of"},
	"a local volume":         {byHand(atLocal("/mnt/fast/a/b"), "host-1"), discovery.Place{}, "has this disk"},
	"a link to it":           {byHand(atHostPath("/srv/a"), "host-1"), discovery.Place{Resolved: "/mnt/fast/a"}, "has this disk"},
	"its device":             {byHand(atLocal("/dev/disk/by-id/x"), "host-1"), discovery.Place{Resolved: "/dev/sdb", Number: 7}, "has this disk"},
	"a path that hangs":      {byHand(atLocal("/srv/a"), "host-1"), discovery.Place{Err: errors.New("it hangs")}, "cannot determine whether PersistentVolume by-hand (/srv/a), which another program has created, has this disk: it hangs"},
	"another":                {byHand(atLocal("/mnt/fast/b"), "host-1"), discovery.Place{}, ""},
	"another that hangs":     {byHand(atLocal("/srv/a"), "host-2"), discovery.Place{Err: errors.New("it hangs")}, ""},
	"another node's":         {byHand(atLocal("/mnt/fast/a"), "host-2"), discovery.Place{}, ""},
	"one that has no path":   {byHand(corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Path: "/mnt/fast/a"}}, ""), discovery.Place{}, ""},
	"one that leads nowhere": {byHand(atHostPath("/srv/none"), ""), discovery.Place{Resolved: "/srv/none", Number: 8, Root: "/srv/none"}, ""},
}

// A file system that has another program's PersistentVolume is not offered, however that names it. A recent list is enough
// to refuse it.
func TestDiscoveredWithAnotherProgramsVolume(t *testing.T) {
	t.Parallel()
	for name, c := range foreignVolumes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, disks := newDiscoveryRig(t)
			r.api.nodeLabels = map[string]string{corev1.LabelHostname: "host-1"}
			disks.found = []discovery.Found{asFilesystemOn7()}
			if c.at.Resolved != "" || c.at.Err != nil {
				disks.places = map[string]discovery.Place{persistentvolume.NodePath(c.volume): c.at}
			}
			r.api.put(c.volume.DeepCopy())
			r.start()
			if c.says == "" {
				r.discoveredIs(flexlvmv1.DiscoveredReady)
				return
			}
			require.Contains(t, r.discoveredIs(flexlvmv1.DiscoveredRefused).Message, c.says)
			r.scans(disks, 3)
			require.Equal(t, 1, r.listed())
			r.api.remove("by-hand")
			r.clock.pass(10 * time.Minute)
			r.api.putDiscovery()
			r.discoveredIs(flexlvmv1.DiscoveredReady)
		})
	}
}

// A file system that has another program's PersistentVolume is not cleaned.
func TestDiscoveredWithAnotherProgramsVolumeIsNotCleaned(t *testing.T) {
	t.Parallel()
	for name, c := range foreignVolumes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, disks := newDiscoveryRig(t)
			require.NoError(t, discovery.Ledger{"fs-u": {Path: "/mnt/fast/a", Offer: 1}}.Write(r.config.DiscoveredFile))
			disks.found = []discovery.Found{asFilesystemOn7()}
			if c.at.Resolved != "" || c.at.Err != nil {
				disks.places = map[string]discovery.Place{persistentvolume.NodePath(c.volume): c.at}
			}
			r.api.put(c.volume.DeepCopy())
			r.api.put(static("pv-1", pvReleased, func(v *corev1.PersistentVolume) {
				v.Annotations[flexlvmv1.AnnotationDisk], v.Spec.NodeAffinity = "fs-u", persistentvolume.NodeAffinity("host-1")
			}))
			r.start()
			if c.says == "" {
				r.discoveredIs(flexlvmv1.DiscoveredCleaned)
				return
			}
			r.eventually(func() bool {
				_, messages := r.statesAt()
				return strings.Contains(messages, "it is not cleaned, and it is retried") && strings.Contains(messages, "by-hand")
			}, "it does not say why")
			require.Zero(t, disks.cleanings())
		})
	}
}
