//go:build vm

package node

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/internal/xfs"
)

// A record that says nothing any more is written anew where the device holds what the
// tags say, and keeps a volume from being formatted where it does not.
func TestTornRecord(t *testing.T) {
	for name, torn := range map[string]string{"empty": "", "torn": `{"volumeUUID":"X`} {
		for _, state := range []volume.State{volume.Ready, volume.Creating} {
			t.Run(name+" "+string(state), func(t *testing.T) {
				m := newMachine(t)
				if state == volume.Creating {
					behind(m)
				}
				s := m.volume("data", 64*volume.MiB)
				target := m.mount(s, "a")
				require.NoError(t, os.WriteFile(target+"/f", []byte("x"), 0o600))
				m.unmount(target)
				require.Equal(t, state, tagsOf(t, s.Name).State)
				tear := func() { require.NoError(t, os.WriteFile(m.records.file(s.Group, s.Name), []byte(torn), 0o600)) }

				tear()
				require.FileExists(t, m.mount(s, "a")+"/f")
				m.unmount(target)
				rec, err := m.records.read(s.Group, s.Name)
				require.NoError(t, err)
				require.Equal(t, state, rec.State)

				tear()
				device := "/dev/mapper/" + volume.DeviceName(group, s.Name)
				m.shell("dd if=/dev/zero of=%s bs=4k count=1 conv=fsync status=none", device)
				sum := m.shell("md5sum < %s", device)
				require.ErrorIs(t, m.Mount(m.ctx(), s, target, false), ErrDamaged)
				require.Equal(t, sum, m.shell("md5sum < %s", device))
			})
		}
	}
}

// Volumes that exist work on while nothing can be written beside them. New ones wait.
func TestStateDirectoryIsOfNoUse(t *testing.T) {
	for name, spoil := range map[string]string{
		"read-only": "mount -o remount,ro %s",
		"full":      "head -c 64k /dev/zero > %[1]s/rest || true; i=0; while mkdir %[1]s/$i 2>/dev/null; do i=$((i+1)); done",
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			dir := m.dir + "/state"
			require.NoError(t, os.Mkdir(dir, 0o700))
			m.shell("mount -t tmpfs -o size=64k,nr_inodes=64 tmpfs %s", dir)
			t.Cleanup(func() { m.shell("umount %s", dir) })
			known, unknown := m.volume("known", 64*volume.MiB), m.volume("unknown", 64*volume.MiB)
			for _, s := range []volume.Spec{known, unknown} {
				target := m.mount(s, "a")
				require.NoError(t, os.WriteFile(target+"/f", []byte("x"), 0o600))
				m.unmount(target)
			}
			require.NoError(t, m.records.remove(unknown.Group, unknown.Name))
			m.shell(spoil, dir)

			for _, s := range []volume.Spec{known, unknown} {
				target := m.mount(s, "a")
				require.FileExists(t, target+"/f", s.Name)
				m.unmount(target)
			}
			err := m.Mount(m.ctx(), m.volume("new", 64*volume.MiB), m.target("new"), false)
			require.ErrorContains(t, err, "is not handed out before it is on record")
			require.False(t, isMounted(m.target("new")))
		})
	}
}

// A device that is suspended holds for ever whoever opens it. No call does.
func TestSuspendedDevice(t *testing.T) {
	m := newMachine(t)
	s := m.volume("data", 64*volume.MiB)
	target := m.mount(s, "a")
	name := volume.DeviceName(group, s.Name)
	resume := func() { _ = exec.Command("dmsetup", "resume", name).Run() }
	t.Cleanup(resume)
	// What does hang is let go, so that this test ends.
	refused := func(what string, call func() error) {
		t.Helper()
		m.shell("dmsetup suspend --nolockfs %s", name)
		ended := make(chan error, 1)
		go func() { ended <- call() }()
		select {
		case err := <-ended:
			resume()
			require.ErrorIs(t, err, lvm.ErrSuspended, what)
			require.ErrorContains(t, err, "`dmsetup resume "+name+"`", what)
		case <-time.After(20 * time.Second):
			resume()
			require.FailNow(t, "it hangs", "%s: %v", what, <-ended)
		}
	}
	bare := machineAt(t, m.dir, t.TempDir()) // without any program
	refused("unmount", func() error { return bare.Unmount(m.ctx(), target) })
	m.unmount(target)
	refused("mount", func() error { return bare.Mount(m.ctx(), s, target, false) })
	refused("growth", func() error { return bare.Expand(m.ctx(), s, grown) })
	require.NoError(t, m.records.remove(s.Group, s.Name))
	refused("mount without a record", func() error { return bare.Mount(m.ctx(), s, target, false) })
	m.unmount(m.mount(s, "a"))

	m.shell("dmsetup suspend %s", name)
	time.AfterFunc(200*time.Millisecond, resume)
	m.unmount(m.mount(s, "a")) // a moment, as while LVM works on it, is waited for
}

// creating makes a volume whose tags say creating, and that this node has no record of:
// handed out, with data in it, or half made by a mkfs that was killed.
func creating(m *machine, name string, handedOut bool) volume.Spec {
	m.t.Helper()
	behind(m)
	s := m.volume(name, 64*volume.MiB)
	if !handedOut {
		tags := volume.Tags{State: volume.Creating, FS: copyFS, Size: s.Size, Namespace: s.Namespace, Cluster: s.Cluster, Kind: s.Kind}
		m.half(s, tags)
		d, err := lvm.FindDevice(s.Group, s.Name)
		require.NoError(m.t, err)
		require.NoError(m.t, xfs.Mkfs(m.ctx(), m.host.Killable, xfs.Format{Device: d.Path, UUID: tags.FS, Size: s.Size}))
		return s
	}
	target := m.mount(s, "a")
	require.NoError(m.t, os.WriteFile(target+"/f", []byte("x"), 0o600))
	m.unmount(target)
	require.Equal(m.t, volume.Creating, tagsOf(m.t, s.Name).State)
	require.NoError(m.t, m.records.remove(s.Group, s.Name))
	return s
}

// Where tags, records and the superblock all say that a volume is new, the copies of its
// superblock may still know better.
func TestCopiesOfTheSuperblock(t *testing.T) { eachLayout(t, testCopiesOfTheSuperblock) }

func testCopiesOfTheSuperblock(t *testing.T, m *machine) {
	for name, damage := range map[string]string{
		"lost":      "dd if=/dev/zero of=%s bs=4k count=1 conv=notrunc,fsync status=none",
		"scribbled": "printf x | dd of=%s bs=1 seek=200 conv=notrunc,fsync status=none",
		"begun":     "printf '\\001' | dd of=%s bs=1 seek=126 conv=notrunc,fsync status=none",
	} {
		if name != "lost" && m.shape.Layout != volume.Linear {
			continue // what differs between layouts is where the copies lie
		}
		device := func(s volume.Spec) string { return "/dev/mapper/" + volume.DeviceName(s.Group, s.Name) }
		served := creating(m, "served-"+name, true)
		m.shell(damage, device(served))
		sum := m.shell("md5sum < %s", device(served))
		err := m.Mount(m.ctx(), served, m.target("b"), false)
		require.ErrorIs(t, err, ErrDamaged, name)
		require.ErrorContains(t, err, "shows that it was in use", name)
		require.Equal(t, sum, m.shell("md5sum < %s", device(served)), name)

		// What a killed mkfs has left is no reason to keep a pod waiting for ever.
		half := creating(m, "half-"+name, false)
		m.shell(damage, device(half))
		target := m.mount(half, "c")
		size, _, _ := df(t, target)
		require.Equal(t, half.Size, size, name)
		m.unmount(target)
		m.clear(served.Name)
		m.clear(half.Name)
	}
}

// A tenant who is root in his container may make device nodes. On the host there are none.
func TestDeviceNodesOfTenants(t *testing.T) {
	m := newMachine(t)
	s := m.volume("data", 64*volume.MiB)
	target := m.mount(s, "a")
	require.NoError(t, unix.Mknod(target+"/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))), "it may be made, and copied")
	readOnly := m.target("b")
	require.NoError(t, m.Mount(m.ctx(), s, readOnly, true))
	for _, dir := range []string{target, readOnly} {
		_, err := os.Open(dir + "/null")
		require.ErrorIs(t, err, os.ErrPermission, dir)
		var st unix.Statfs_t
		require.NoError(t, unix.Statfs(dir, &st))
		require.Zero(t, st.Flags&unix.ST_NOSUID, "what a pod runs may be setuid: %s", dir)
	}
}
