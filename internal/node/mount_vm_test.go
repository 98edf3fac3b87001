//go:build vm

package node

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/exec"

	"github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestMountAgainKeepsData(t *testing.T) { eachLayout(t, testMountAgainKeepsData) }

func testMountAgainKeepsData(t *testing.T, m *machine) {
	s := m.volume("data", 64*volume.MiB)
	target := m.mount(s, "a")
	require.Equal(t, volume.Ready, tagsOf(t, s.Name).State)
	require.NoError(t, os.WriteFile(target+"/f", []byte("here"), 0o600))
	for _, pod := range []string{"b", "c"} {
		m.unmount(target)
		require.False(t, isMounted(target))
		target = m.mount(s, pod)
		b, err := os.ReadFile(target + "/f")
		require.NoError(t, err)
		require.Equal(t, "here", string(b))
	}
}

// An existing volume is mounted without running any program: it works on a host that has none.
func TestMountOfExistingVolumeForksNothing(t *testing.T) {
	linearAndThin(t, testMountOfExistingVolumeForksNothing)
}

func testMountOfExistingVolumeForksNothing(t *testing.T, m *machine) {
	s := m.volume("data", 64*volume.MiB)
	m.unmount(m.mount(s, "a"))
	bare := machineAt(t, m.dir, t.TempDir())
	bare.unmount(bare.mount(s, "b"))

	_, err := bare.List(bare.ctx())
	require.ErrorIs(t, err, exec.ErrExecutableNotFound, "the bare host must really have nothing")
}

// A pod that starts waits for each LVM command. There are two before the reply, of which the first shows
// whether the group is the one that the volume was promised in.
func TestFirstMountRunsThreePrograms(t *testing.T) {
	m := newMachine(t)
	m.settle = func(volume.Group, volume.Name) {}
	s := m.volume("data", 64*volume.MiB)
	s.GroupUUID = m.shell("vgs --noheadings -o vg_uuid %s", group)
	before := m.commands()
	m.unmount(m.mount(s, "a"))
	require.Equal(t, 3, m.commands()-before, "vgs, lvcreate, mkfs.xfs")
}

func TestSharedAndReadOnlyMounts(t *testing.T) { linearAndThin(t, testSharedAndReadOnlyMounts) }

func testSharedAndReadOnlyMounts(t *testing.T, m *machine) {
	s := m.volume("shared", 64*volume.MiB)
	rw := m.mount(s, "rw")
	ro := m.target("ro")
	require.NoError(t, m.Mount(m.ctx(), s, MountRequest{Target: ro, ReadOnly: true}))
	require.NoError(t, os.WriteFile(rw+"/f", []byte("x"), 0o600))
	b, err := os.ReadFile(ro + "/f")
	require.NoError(t, err)
	require.Equal(t, "x", string(b))
	require.ErrorIs(t, os.WriteFile(ro+"/g", nil, 0o600), syscall.EROFS)
	require.NoError(t, os.WriteFile(rw+"/g", nil, 0o600), "the other mount stays writable")
	m.unmount(rw)
	require.True(t, isMounted(ro))
	m.unmount(ro)

	// Read-only first: the quota must still be set.
	s2 := m.volume("ro-first", 64*volume.MiB)
	require.NoError(t, m.Mount(m.ctx(), s2, MountRequest{Target: m.target("first"), ReadOnly: true}))
	size, _, _ := df(t, m.target("first"))
	require.Equal(t, s2.Size, size)
}

func TestMountedAlready(t *testing.T) {
	m := newMachine(t)
	s := m.volume("data", 64*volume.MiB)
	target := m.mount(s, "a")
	before := m.shell("cat /proc/self/mountinfo")
	require.NoError(t, m.tryMount(s, target))
	require.Equal(t, before, m.shell("cat /proc/self/mountinfo"))

	other := m.volume("other", 64*volume.MiB)
	err := m.tryMount(other, target)
	require.ErrorContains(t, err, "something else is mounted there (xfs from /dev/mapper/flexlvm--test-data)")
	require.NotContains(t, lvs(), "other", "refused before anything was made")

	tmpfs := m.target("tmpfs")
	m.shell("mount -t tmpfs tmpfs %s", tmpfs)
	err = m.tryMount(s, tmpfs)
	require.ErrorContains(t, err, "something else is mounted there (tmpfs from tmpfs)")
	require.ErrorContains(t, m.Unmount(m.ctx(), tmpfs), "no flexlvm volume")
	require.True(t, isMounted(tmpfs))
	m.shell("umount %s", tmpfs)
}

func TestTargetsThatAreRefused(t *testing.T) {
	m := newMachine(t)
	s := m.volume("data", 64*volume.MiB)
	file := filepath.Join(m.dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	link := filepath.Join(m.dir, "link")
	require.NoError(t, os.Symlink(m.target("real"), link))
	full := m.target("full")
	require.NoError(t, os.WriteFile(full+"/precious", nil, 0o600))
	for target, why := range map[string]string{
		"":                 "is empty",
		"relative/dir":     "is not absolute",
		"/":                "root directory",
		m.dir + "/../x":    "plain form",
		full + "/":         "plain form",
		m.dir + "/a\x00b":  "NUL",
		m.dir + "/missing": "does not exist",
		file:               "is not a directory",
		link:               "is not a directory",
		full:               `is not empty: it holds "precious"`,
	} {
		err := m.tryMount(s, target)
		var bad *mount.TargetError
		require.ErrorAs(t, err, &bad, target)
		require.ErrorContains(t, err, why)
	}
	require.Empty(t, lvs(), "refused before anything was made")
}

func TestUnmountOfNothing(t *testing.T) {
	m := newMachine(t)
	require.NoError(t, m.Unmount(m.ctx(), m.target("empty")))
	require.NoError(t, m.Unmount(m.ctx(), m.dir+"/missing"))
	require.NoError(t, m.Unmount(m.ctx(), m.dir+"/missing/below"))
}

func TestUnmountWhileInUse(t *testing.T) {
	m := newMachine(t)
	s := m.volume("data", 64*volume.MiB)
	target := m.mount(s, "a")
	f, err := os.Create(target + "/open")
	require.NoError(t, err)
	require.ErrorIs(t, m.Unmount(m.ctx(), target), mount.ErrBusy)
	require.True(t, isMounted(target), "never lazily")
	require.NoError(t, f.Close())
	require.NoError(t, m.Unmount(m.ctx(), target+"/"), "however it is written")
	require.False(t, isMounted(target))
	require.NoError(t, os.Remove(target), "kubelet removes the directory with a plain rmdir")
}

func TestMountsThatAreRefused(t *testing.T) {
	m := newMachine(t)
	s := m.volume("data", 64*volume.MiB)
	target := m.mount(s, "a")
	m.unmount(target)
	forget := func() { require.NoError(t, m.records.remove(s.Group, s.Name)) }
	for name, c := range map[string]struct {
		spoil func(*volume.Spec)
		why   string
	}{
		"namespace":   {func(s *volume.Spec) { s.Namespace = "thief" }, `belongs to namespace "default", not to "thief"`},
		"no ns":       {func(s *volume.Spec) { s.Namespace = "" }, "namespace: is required"},
		"cluster":     {func(s *volume.Spec) { s.Cluster = "another" }, "was created for cluster"},
		"kind":        {func(s *volume.Spec) { s.Kind = volume.Dataset }, `is of kind "claim"`},
		"group UUID":  {func(s *volume.Spec) { s.GroupUUID = "XfRyGj-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3S" }, "is another one"},
		"larger size": {func(s *volume.Spec) { s.Size++ }, "holds only 67108864 bytes"},
		"layout":      {func(s *volume.Spec) { s.Layout = "raid6" }, `layout "raid6"`},
	} {
		bad := s
		c.spoil(&bad)
		require.ErrorContains(t, m.tryMount(bad, target), c.why, "%s, from the record", name)
		forget()
		require.ErrorContains(t, m.tryMount(bad, target), c.why, "%s, from the tags", name)
		require.False(t, isMounted(target))
		m.unmount(m.mount(s, "a")) // writes the record again
	}

	smaller := s
	smaller.Size--
	require.NoError(t, m.tryMount(smaller, target), "the volume has grown since; the option never changes")
	size, _, _ := df(t, target)
	require.Equal(t, s.Size, size)
}

func TestPinnedGroup(t *testing.T) {
	m := newMachine(t)
	s := m.volume("data", 64*volume.MiB)
	s.GroupUUID = "XfRyGj-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3S"
	require.ErrorContains(t, m.tryMount(s, m.target("a")), "is another one")
	require.Empty(t, lvs(), "no empty volume in place of a lost one")
	s.GroupUUID = m.shell("vgs --noheadings -o vg_uuid %s", group)
	m.mount(s, "a")
}

func TestForeignVolumes(t *testing.T) {
	m := newMachine(t)
	s := m.volume("data", 64*volume.MiB)
	target := m.target("a")
	m.shell("lvcreate --yes -L 64m -n data %s", group)
	m.shell("mkfs.ext4 -q /dev/mapper/flexlvm--test-data")
	before := m.written(devicePath(s))
	require.ErrorContains(t, m.tryMount(s, target), `does not carry the tag "flexlvm"`)
	m.shell("lvchange --addtag flexlvm --addtag flexlvm.state=happy %s/data", group)
	require.ErrorContains(t, m.tryMount(s, target), "are invalid")
	require.Equal(t, before, m.written(devicePath(s)))
	require.False(t, isMounted(target))
}

// A ready volume that does not hold its file system is never formatted.
func TestDamagedVolumesAreNotFormatted(t *testing.T) {
	for name, damage := range map[string]string{
		"superblock destroyed": "dd if=/dev/zero of=$D bs=512 count=1 conv=notrunc,fsync",
		"superblock scribbled": "printf x | dd of=$D bs=1 seek=200 conv=notrunc,fsync",
		"everything destroyed": "blkdiscard -z $D",
		"foreign file system":  "mkfs.ext4 -qF $D",
		"foreign XFS":          "mkfs.xfs -fq $D",
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			s := m.volume("data", 64*volume.MiB)
			target := m.mount(s, "a")
			require.NoError(t, os.WriteFile(target+"/f", []byte("x"), 0o600))
			m.unmount(target)
			device := "/dev/mapper/" + volume.DeviceName(group, s.Name)
			m.shell("D=%s; %s", device, damage)
			before := m.written(device)
			for range 2 { // once with a record, once without
				err := m.tryMount(s, target)
				require.ErrorIs(t, err, ErrDamaged)
				require.ErrorContains(t, err, "it is not formatted again")
				require.ErrorIs(t, m.Expand(m.ctx(), s, volume.GiB), ErrDamaged)
				require.NoError(t, m.records.remove(s.Group, s.Name))
			}
			require.Equal(t, before, m.written(device))
			require.False(t, isMounted(target))
		})
	}
}

// An unfinished volume in state creating is finished, whatever is on its device; a volume that a pod has had
// is not formatted again.
func TestCreatingIsFinished(t *testing.T) { linearAndThin(t, testCreatingIsFinished) }

func testCreatingIsFinished(t *testing.T, m *machine) {
	s := m.volume("data", 64*volume.MiB)
	tags := volume.Tags{State: volume.Creating, FS: "0d9ee5ba-5b9b-4c8e-8d7e-0f4b8f0c6a11", Size: s.Size, Namespace: s.Namespace, Cluster: s.Cluster, Kind: s.Kind, Reclaim: volume.ReclaimLazy, Wipe: volume.WipeNone}
	m.half(s, tags)
	m.shell("mkfs.ext4 -q /dev/mapper/flexlvm--test-data")
	target := m.mount(s, "a")
	size, _, _ := df(t, target)
	require.Equal(t, s.Size, size)
	tags.State = volume.Ready
	require.Equal(t, tags, tagsOf(t, s.Name))

	require.NoError(t, os.WriteFile(target+"/f", []byte("x"), 0o600))
	m.unmount(target)
	m.shell("lvchange --deltag flexlvm.state=ready --addtag flexlvm.state=creating %s/data", group)
	require.NoError(t, m.records.remove(s.Group, s.Name))
	require.FileExists(t, m.mount(s, "b")+"/f", "it was in use")
	require.Equal(t, volume.Ready, tagsOf(t, s.Name).State)
}

func TestReleasedVolumesAreNotMounted(t *testing.T) {
	m := newMachine(t)
	for _, state := range []volume.State{volume.Unreferenced, volume.Retained} {
		s := m.volume("data-"+string(state), 64*volume.MiB)
		m.unmount(m.mount(s, "a"))
		require.NoError(t, m.Release(m.ctx(), refOf(s), state, volume.Disposal{}))
		require.ErrorIs(t, m.tryMount(s, m.target("a")), ErrRefused)
	}
}

func TestInactiveAfterReboot(t *testing.T) { linearAndThin(t, testInactiveAfterReboot) }

func testInactiveAfterReboot(t *testing.T, m *machine) {
	s := m.volume("data", 64*volume.MiB)
	target := m.mount(s, "a")
	require.NoError(t, os.WriteFile(target+"/f", []byte("x"), 0o600))
	m.unmount(target)
	m.shell("vgchange -an %s", group)
	require.NoFileExists(t, "/dev/mapper/flexlvm--test-data")
	require.FileExists(t, m.mount(s, "b")+"/f")
}

// A node that has lost a volume which it has had must not replace it with an empty one.
func TestLostVolumeIsNotReplaced(t *testing.T) { linearAndThin(t, testLostVolumeIsNotReplaced) }

func testLostVolumeIsNotReplaced(t *testing.T, m *machine) {
	s := m.volume("data", 64*volume.MiB)
	target := m.mount(s, "a")
	m.unmount(target)
	m.shell("lvremove --yes %s/data", group)
	err := m.tryMount(s, target)
	require.ErrorIs(t, err, ErrLost)
	require.ErrorContains(t, err, "an empty volume will not take its place")
	require.Empty(t, lvs())
}

func TestFullGroup(t *testing.T) { eachThickLayout(t, testFullGroup) }

func testFullGroup(t *testing.T, m *machine) {
	s := m.volume("huge", volume.TiB)
	err := m.tryMount(s, m.target("a"))
	require.ErrorIs(t, err, lvm.ErrNoSpace)
	require.ErrorContains(t, err, "flexlvm-test has")
	require.Empty(t, lvs())
}

func TestMissingGroup(t *testing.T) {
	m := newMachine(t)
	s := m.volume("data", 64*volume.MiB)
	s.Group = "nowhere"
	err := m.tryMount(s, m.target("a"))
	require.ErrorIs(t, err, lvm.ErrNoGroup)
	require.ErrorContains(t, err, "flexlvm vg create --name nowhere")
}

func TestMissingTools(t *testing.T) {
	dir, bin := t.TempDir(), t.TempDir()
	m := machineAt(t, dir, bin)
	s := m.volume("data", 64*volume.MiB)
	require.ErrorContains(t, m.tryMount(s, m.target("a")), "lvcreate is not on this host")
	for _, tool := range []string{"lvcreate", "lvs", "vgs", "lvchange"} {
		require.NoError(t, os.Symlink(m.shell("command -v %s", tool), filepath.Join(bin, tool)))
	}
	require.ErrorContains(t, m.tryMount(s, m.target("a")), "install the package that holds it (xfsprogs)")
	require.Equal(t, volume.Creating, tagsOf(t, s.Name).State)

	whole := machineAt(t, dir, command.DefaultPath)
	size, _, _ := df(t, whole.mount(s, "a"))
	require.Equal(t, s.Size, size, "the next call puts it right")
}

func TestList(t *testing.T) {
	m := newMachine(t)
	s := m.volume("data", 64*volume.MiB)
	target := m.mount(s, "a")
	m.volume("nonsense", 0)
	m.volume("stranger", 0)
	m.shell("lvcreate --yes -L 4m -n nonsense --addtag flexlvm --addtag flexlvm.state=happy %s", group)
	m.shell("lvcreate --yes -L 4m -n stranger %s", group)
	other := m.volume("other", 64*volume.MiB)
	m.unmount(m.mount(other, "b"))
	require.NoError(t, m.Expand(m.ctx(), s, 400*volume.MiB))
	require.Equal(t, "2", m.shell("lvs --noheadings -o seg_count %s/data", group), "the volume lies in two pieces")
	all, err := m.List(m.ctx())
	require.NoError(t, err)
	require.Len(t, all, 3, "what is not ours is not listed, and nothing twice")
	byName := map[volume.Name]inventory.Volume{}
	for _, v := range all {
		byName[v.Name] = v
	}
	v := byName["data"]
	require.Equal(t, volume.Ready, v.State)
	require.Equal(t, 400*volume.MiB, v.Size)
	require.Equal(t, volume.XFSDeviceSize(v.Size, 0), v.Allocated)
	require.Equal(t, []string{target}, v.Mounts)
	require.True(t, v.Open)
	require.True(t, v.Active)
	require.Empty(t, v.Problem)
	require.False(t, v.LastUsed.Before(v.Created), fmt.Sprint(v))
	require.Contains(t, byName["nonsense"].Problem, "happy")
}
