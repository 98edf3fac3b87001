package iolimit

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestPodPath(t *testing.T) {
	for path, want := range map[string][2]string{
		"/var/lib/kubelet/pods/u-1/volumes/flexlvm.io~flexlvm/pvc-1":            {"u-1", "pvc-1"},
		"/pods/u-1/volumes/flexlvm.io~flexlvm/pvc-1":                            {"u-1", "pvc-1"},
		"/pods/pods/u-1/volumes/flexlvm.io~flexlvm/pvc-1":                       {"u-1", "pvc-1"},
		"/var/lib/kubelet/pods/u-1/volumes/flexlvm.io~other/pvc-1":              {},
		"/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~csi/pvc-1":             {},
		"/var/lib/kubelet/pods/u-1/volumes/flexlvm.io~flexlvm":                  {},
		"/pods/u-1/volumes/flexlvm.io~flexlvm/pvc-1/data":                       {},
		"/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~csi/pvc-1/mount":       {"u-1", "pvc-1"},
		"/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~csi/pvc-1/mount/mount": {},
		"/var/lib/kubelet/pods/u-1/volumes/flexlvm.io~flexlvm/pvc-1/mount":      {},
		"/pods/u-1/volumes/flexlvm.io~flexlvm/mount":                            {"u-1", "mount"},
		"/volumes/flexlvm.io~flexlvm/pvc-1":                                     {},
		"/":                                                                     {}, "": {},
	} {
		pod, name, is := podPath(path)
		require.Equal(t, want, [2]string{pod, name}, path)
		require.Equal(t, want[0] != "", is, path)
	}
}

func TestPodVolumes(t *testing.T) {
	at := func(kind string, paths ...string) (out []mount.Point) {
		for _, p := range paths {
			out = append(out, mount.Point{Path: p, Type: kind})
		}
		return out
	}
	const pods = "/var/lib/kubelet/pods/"
	mounts := map[uint64][]mount.Point{
		1: at("xfs", pods+"b/volumes/flexlvm.io~flexlvm/pv-1", pods+"a/volumes/flexlvm.io~flexlvm/pv-1", "/mnt"),
		2: at("xfs", pods+"a/volumes/flexlvm.io~flexlvm/pv-2", pods+"a/volumes/flexlvm.io~flexlvm/pv-2"),
		3: at("xfs", pods+"a/volumes/flexlvm.io~flexlvm/unknown"),
		4: at("tmpfs", pods+"a/volumes/flexlvm.io~flexlvm/pv-1"),
		5: at("ext4", "/"),
		6: at("ext4", pods+"c/volumes/kubernetes.io~csi/pv-2/mount"),
		7: at("devtmpfs", "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pv-1/d", "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/pv-1/dev/d"),
	}
	require.Equal(t, []podVolume{{"a", "pv-1", 1}, {"a", "pv-2", 2}, {"b", "pv-1", 1}, {"c", "pv-2", 6}, {"d", "pv-1", 7}},
		podVolumes(mounts, map[string]volume.IOLimits{"pv-1": {WriteBps: 5000}, "pv-2": {}}))
	require.Empty(t, podVolumes(mounts, nil))
}

func TestLimitChanges(t *testing.T) {
	type groups = map[string]map[uint64]volume.IOLimits
	slow, slower := volume.IOLimits{WriteBps: 8192}, volume.IOLimits{WriteBps: 4096}
	mounted := []podVolume{{"a", "pv-1", 1}, {"a", "pv-2", 2}, {"b", "pv-1", 1}}
	tests := map[string]struct {
		mounted []podVolume
		limits  map[string]volume.IOLimits
		there   groups
		want    []limitChange
	}{
		"nothing is wanted and nothing there": {
			limits: map[string]volume.IOLimits{"pv-1": {}, "pv-2": {}}, there: groups{"a": {}, "b": {}},
		},
		"new": {
			limits: map[string]volume.IOLimits{"pv-1": slow, "pv-2": {}}, there: groups{"a": {}, "b": {}},
			want: []limitChange{{mounted[0], slow}, {mounted[2], slow}},
		},
		"in force": {
			limits: map[string]volume.IOLimits{"pv-1": slow, "pv-2": {}}, there: groups{"a": {1: slow}, "b": {1: slow}},
		},
		"changed, one of them": {
			limits: map[string]volume.IOLimits{"pv-1": slower, "pv-2": slow}, there: groups{"a": {1: slow, 2: slow}, "b": {1: slower}},
			want: []limitChange{{mounted[0], slower}},
		},
		"not wanted any more": {
			limits: map[string]volume.IOLimits{"pv-1": {}, "pv-2": slow}, there: groups{"a": {1: slow, 2: slow}, "b": {1: slow}},
			want: []limitChange{{mounted[0], volume.IOLimits{}}, {mounted[2], volume.IOLimits{}}},
		},
		"devices of others": {
			limits: map[string]volume.IOLimits{"pv-1": slow, "pv-2": {}}, there: groups{"a": {1: slow, 7: slower}, "b": {1: slow, 8: slower}},
		},
		"a pod that is not known": {
			limits: map[string]volume.IOLimits{"pv-1": slow, "pv-2": slow}, there: groups{"b": {}},
			want: []limitChange{{mounted[2], slow}},
		},
		"two PersistentVolumes of one device": {
			mounted: []podVolume{{"a", "pv-1", 1}, {"a", "pv-2", 1}},
			limits:  map[string]volume.IOLimits{"pv-1": slow, "pv-2": slower}, there: groups{"a": {1: slow}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if tt.mounted == nil {
				tt.mounted = mounted
			}
			changes := limitChanges(tt.mounted, tt.limits, tt.there)
			require.Equal(t, tt.want, changes)
			for _, c := range changes {
				tt.there[c.pod][c.device] = c.limits
			}
			require.Empty(t, limitChanges(tt.mounted, tt.limits, tt.there), "once is enough")
		})
	}
}

func TestReadLimits(t *testing.T) {
	limits, unreadable := readLimits([]persistentvolume.Volume{{PV: "none"}, {PV: "slow", IOLimits: "wbps=8192"}, {PV: "typo", IOLimits: "wbps=8k"}})
	require.Equal(t, map[string]volume.IOLimits{"none": {}, "slow": {WriteBps: 8192}}, limits)
	require.Len(t, unreadable, 1)
	require.EqualError(t, unreadable["typo"], `flexlvm.io/io-limits: wbps "8k": is not a whole decimal number greater than 0 (no sign, no unit, no fraction); until it is corrected, the current limits stay`)
}

// A directory volume has no device of its own, and a limit on its pool's device would slow down other volumes.
func TestDirectoriesHaveNoLimits(t *testing.T) {
	in := volume.Shape{Layout: volume.Directory, DirectoryPool: "small"}
	limits, unreadable := readLimits([]persistentvolume.Volume{
		{PV: "pv-1", Shape: in}, {PV: "pv-2", Shape: in, IOLimits: volume.IOLimits{WriteBps: 5000}.String()}, {PV: "pv-3", IOLimits: volume.IOLimits{WriteBps: 5000}.String()},
	})
	require.Equal(t, map[string]volume.IOLimits{"pv-3": {WriteBps: 5000}}, limits)
	require.Len(t, unreadable, 1)
	require.ErrorContains(t, unreadable["pv-2"], `layout "directory" has no limits on IO`)
}
