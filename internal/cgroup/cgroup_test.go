package cgroup_test

import (
	"os"
	"path/filepath"
	"testing"

	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/cgroup"
	"github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	one = "0d5b7d52-93cb-4a87-a8a6-6d2ffb7f5c0e"
	two = "7f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11"
)

// tree creates groups below a root of cgroup v2.
func tree(t *testing.T, groups ...string) (root string, tr *cgroup.Tree) {
	root = t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(root, "cgroup.controllers"), []byte("cpuset cpu io memory pids\n"), 0o600))
	for _, g := range groups {
		require.NoError(t, os.MkdirAll(filepath.Join(root, g), 0o700))
	}
	return root, cgroup.New(root)
}

func TestPods(t *testing.T) {
	tests := map[string]struct {
		groups []string
		want   map[string]string // by UID
	}{
		"driver cgroupfs": {
			groups: []string{"kubepods/burstable/pod" + one, "kubepods/pod" + two, "kubepods/besteffort/pod11111111-2222-3333-4444-555555555555"},
			want:   map[string]string{one: "kubepods/burstable/pod" + one, two: "kubepods/pod" + two},
		},
		"driver systemd": {
			groups: []string{
				"system.slice/ssh.service", "user.slice/user-0.slice/session-1.scope",
				"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0d5b7d52_93cb_4a87_a8a6_6d2ffb7f5c0e.slice/cri-containerd-1.scope",
				"kubepods.slice/kubepods-pod7f3c9a52_3b0a_4c58_9f3e_1f0b7f6f2a11.slice",
			},
			want: map[string]string{
				one: "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0d5b7d52_93cb_4a87_a8a6_6d2ffb7f5c0e.slice",
				two: "kubepods.slice/kubepods-pod7f3c9a52_3b0a_4c58_9f3e_1f0b7f6f2a11.slice",
			},
		},
		"a node in a container": {
			groups: []string{"system.slice/docker-1.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod0d5b7d52_93cb_4a87_a8a6_6d2ffb7f5c0e.slice"},
			want: map[string]string{
				one: "system.slice/docker-1.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod0d5b7d52_93cb_4a87_a8a6_6d2ffb7f5c0e.slice",
			},
		},
		"not in another pod": {
			groups: []string{"kubepods/pod" + two + "/box/pod" + one},
			want:   map[string]string{two: "kubepods/pod" + two},
		},
		"too deep":          {groups: []string{"1/2/3/4/5/6/7/8/pod" + one}, want: map[string]string{}},
		"names that remind": {groups: []string{"pod" + one + "x", "xpod" + one, "kubepods-pod.slice", "podman.slice", "pod0d5b7d52_93cb_4a87_a8a6_6d2ffb7f5c0e"}, want: map[string]string{}},
		"none":              {want: map[string]string{}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			root, tr := tree(t, tt.groups...)
			require.NoError(t, os.WriteFile(filepath.Join(root, "pod"+one+"-is-a-file"), nil, 0o600))
			got, err := tr.Pods(map[string]bool{one: true, two: true})
			require.NoError(t, err)
			for uid, path := range tt.want {
				tt.want[uid] = filepath.Join(root, path)
			}
			require.Equal(t, tt.want, got)
		})
	}
}

// In cgroup v1 and in hybrid mode, the root has a directory for each controller. Both are refused.
func TestVersionOne(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, "blkio/kubepods/pod"+one), 0o700))
	_, err := cgroup.New(root).Pods(map[string]bool{one: true})
	require.ErrorIs(t, err, cgroup.ErrVersion)
	require.ErrorContains(t, err, "systemd.unified_cgroup_hierarchy=1")
}

func TestIOLimits(t *testing.T) {
	root, tr := tree(t, "kubepods/pod"+one)
	group := filepath.Join(root, "kubepods/pod"+one)
	file := filepath.Join(group, "io.max")

	_, err := tr.IOLimits(group)
	require.ErrorIs(t, err, cgroup.ErrNoController)
	require.ErrorContains(t, err, "control group /kubepods/pod"+one)
	require.ErrorIs(t, tr.SetIOLimits(group, 1, volume.IOLimits{}), cgroup.ErrNoController)
	require.NoFileExists(t, file, "nothing is made")

	tests := map[string]struct {
		content string
		want    map[uint64]volume.IOLimits
		err     string
	}{
		"empty": {want: map[uint64]volume.IOLimits{}},
		"as the kernel shows it": {
			content: "254:3 rbps=1048576 wbps=max riops=max wiops=100\n8:16 rbps=max wbps=1 riops=5 wiops=max\n",
			want: map[uint64]volume.IOLimits{
				unix.Mkdev(254, 3): {ReadBps: volume.MiB, WriteIOPS: 100},
				unix.Mkdev(8, 16):  {WriteBps: 1, ReadIOPS: 5},
			},
		},
		"a kernel of the future": {
			content: "254:70000 rbps=max wbps=5000 riops=max wiops=max later=7\n",
			want:    map[uint64]volume.IOLimits{unix.Mkdev(254, 70000): {WriteBps: 5000}},
		},
		"no number": {content: "254:3 rbps=much\n", err: `rbps=much`},
		"no device": {content: "sda rbps=1\n", err: `the line "sda rbps=1\n"`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(file, []byte(tt.content), 0o600))
			got, err := tr.IOLimits(group)
			if tt.err != "" {
				require.ErrorContains(t, err, tt.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
}

func TestSetIOLimits(t *testing.T) {
	root, tr := tree(t, "kubepods/pod"+one)
	group := filepath.Join(root, "kubepods/pod"+one)
	file := filepath.Join(group, "io.max")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, tr.SetIOLimits(group, unix.Mkdev(254, 3), volume.IOLimits{WriteBps: 2 * volume.MiB}))
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "254:3 rbps=max wbps=2097152 riops=max wiops=max\n", string(content))
	got, err := tr.IOLimits(group)
	require.NoError(t, err)
	require.Equal(t, map[uint64]volume.IOLimits{unix.Mkdev(254, 3): {WriteBps: 2 * volume.MiB}}, got)

	require.NoError(t, os.RemoveAll(group))
	_, err = tr.IOLimits(group)
	require.ErrorIs(t, err, cgroup.ErrGone)
	require.ErrorIs(t, tr.SetIOLimits(group, 1, volume.IOLimits{}), cgroup.ErrGone)
}

func TestOwn(t *testing.T) {
	root, tr := tree(t, "kubepods")
	for range 2 { // the second time, the group exists
		dir, err := tr.OpenOrCreate("flexlvm")
		require.NoError(t, err)
		require.Equal(t, filepath.Join(root, "flexlvm"), dir.Name())
		require.NoError(t, dir.Close())
	}
	other := t.TempDir()
	_, err := cgroup.New(other).OpenOrCreate("flexlvm")
	require.ErrorIs(t, err, cgroup.ErrVersion)
	require.NoDirExists(t, filepath.Join(other, "flexlvm"))
	require.NoError(t, os.WriteFile(filepath.Join(root, "file"), nil, 0o600))
	_, err = tr.OpenOrCreate("file/sub")
	require.ErrorContains(t, err, "create control group")
}

func TestInHostGroup(t *testing.T) {
	root, tr := tree(t, "kubepods")
	log, _ := logtest.NewNullLogger()
	host := command.New("", log)
	in, release, err := tr.InHostGroup(host)
	require.NoError(t, err)
	defer release()
	require.DirExists(t, filepath.Join(root, cgroup.HostPrograms))
	require.NotSame(t, host.Unkillable, in.Unkillable)
	require.NotSame(t, host.Killable, in.Killable)

	same, release, err := cgroup.New(t.TempDir()).InHostGroup(host)
	require.ErrorIs(t, err, cgroup.ErrVersion)
	release()
	require.Same(t, host.Unkillable, same.Unkillable)
	require.Same(t, host.Killable, same.Killable)
}
