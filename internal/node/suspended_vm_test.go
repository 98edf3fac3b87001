//go:build vm

package node

import (
	"os/exec"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A process that opens a suspended device hangs, so no call opens one.
func TestSuspendedDevice(t *testing.T) {
	m := newMachine(t)
	s := m.volume("data", 64*volume.MiB)
	target := m.mount(s, "a")
	name := volume.DeviceName(group, s.Name)
	resume := func() { _ = exec.Command("dmsetup", "resume", name).Run() }
	t.Cleanup(resume)
	// If a call hangs all the same, the device is resumed, so that this test ends.
	refused := func(what string, call func() error) {
		t.Helper()
		m.shell("dmsetup suspend --nolockfs %s", name)
		ended := make(chan error, 1)
		go func() { ended <- call() }()
		select {
		case err := <-ended:
			resume()
			require.ErrorIs(t, err, lvm.ErrSuspended, what)
			require.ErrorContains(t, err, "`dmsetup clear "+name+" && lvchange --refresh "+string(group)+"/data`", what)
		case <-time.After(time.Minute):
			resume()
			require.FailNow(t, "it hangs", "%s: %v", what, <-ended)
		}
	}
	bare := machineAt(t, m.dir, t.TempDir()) // without any program
	bare.resumeWait = 300 * time.Millisecond // nothing resumes the device
	refused("unmount", func() error { return bare.Unmount(m.ctx(), target) })
	refused("growth where it is mounted", func() error { return bare.growMounted(s.Group, s.Name, target, grown) })
	m.unmount(target)
	refused("mount", func() error { return bare.Mount(m.ctx(), s, MountRequest{Target: target}) })
	refused("growth", func() error { return bare.Expand(m.ctx(), s, grown) })
	require.NoError(t, m.records.remove(s.Group, s.Name))
	refused("mount without a record", func() error { return bare.Mount(m.ctx(), s, MountRequest{Target: target}) })
	m.unmount(m.mount(s, "a"))

	m.resumeWait = time.Minute
	m.shell("dmsetup suspend %s", name)
	time.AfterFunc(200*time.Millisecond, resume)
	m.unmount(m.mount(s, "a")) // it waits for a moment, as while LVM works on the volume
}

// The command in the error message restores the size that LVM has committed, whatever table an interrupted
// lvextend has left in the kernel. If a person resumes the larger device instead, nothing is written beyond the
// committed size.
func TestInterruptedExtension(t *testing.T) {
	m := newMachine(t)
	s := m.volume("data", 64*volume.MiB)
	target := m.mount(s, "a")
	m.unmount(target)
	name := volume.DeviceName(group, s.Name)
	t.Cleanup(func() { _ = exec.Command("dmsetup", "resume", name).Run() })
	lv, err := m.lvm.Volume(m.ctx(), s.Group, s.Name)
	require.NoError(t, err)
	d, err := lvm.FindDevice(s.Group, s.Name)
	require.NoError(t, err)
	leaveLarger := func() {
		m.shell("dmsetup table %[1]s | awk '{$2 += 8192; print}' >%[2]s/table; dmsetup suspend --nolockfs %[1]s; dmsetup reload %[1]s %[2]s/table", name, m.dir)
	}
	sizeOf := func() volume.Bytes {
		size, err := deviceSize(d.Path)
		require.NoError(t, err)
		return size
	}

	leaveLarger()
	m.resumeWait = 300 * time.Millisecond
	err = m.tryMount(s, target)
	require.ErrorIs(t, err, lvm.ErrSuspended)
	advice := regexp.MustCompile("`([^`]*)`").FindStringSubmatch(err.Error())
	require.NotNil(t, advice, err)
	m.shell("%s", advice[1])
	require.Equal(t, lv.Size, sizeOf())
	m.unmount(m.mount(s, "a"))

	leaveLarger()
	m.shell("dmsetup resume %s", name)
	require.Equal(t, lv.Size+4*volume.MiB, sizeOf())
	require.ErrorContains(t, m.wipe(m.ctx(), lv, volume.Tags{Wipe: volume.WipeZero}), "`lvchange --refresh")
	_, err = m.committedSize(m.ctx(), d, d.Path)
	require.ErrorContains(t, err, "`lvchange --refresh")
	m.shell("lvchange --refresh %s/%s", group, s.Name)
	require.Equal(t, lv.Size, sizeOf())
	m.unmount(m.mount(s, "a"))
}

// LVM commits a larger size, and the kernel does not get it: the device stays suspended, or a person resumes it with
// its former table. The growth fails, and is recorded only once the device has its size.
func TestExtensionThatTheKernelDoesNotGet(t *testing.T) {
	m := newMachine(t)
	s := m.volume("data", 64*volume.MiB)
	m.mount(s, "a")
	name := volume.DeviceName(group, s.Name)
	t.Cleanup(func() { _ = exec.Command("dmsetup", "resume", name).Run() })
	m.resumeWait = 300 * time.Millisecond
	former := m.shell("dmsetup table %s", name)
	after := m.after
	m.after = func(step string) {
		if step == "lvextend" {
			m.shell("dmsetup suspend --nolockfs %s", name)
		}
		after(step)
	}
	require.ErrorIs(t, m.Expand(m.ctx(), s, grown), lvm.ErrSuspended)
	m.after = after
	require.Equal(t, s.Size, tagsOf(t, s.Name).Size)
	rec, err := m.records.read(s.Group, s.Name)
	require.NoError(t, err)
	require.Equal(t, s.Size, rec.Size)

	m.shell("echo '%s' | dmsetup reload %[2]s && dmsetup resume %[2]s", former, name)
	require.ErrorContains(t, m.Expand(m.ctx(), s, grown), "`lvchange --refresh "+string(group)+"/data`")
	require.Equal(t, s.Size, tagsOf(t, s.Name).Size)

	m.shell("lvchange --refresh %s/%s", group, s.Name)
	require.NoError(t, m.Expand(m.ctx(), s, grown))
	require.Equal(t, grown, tagsOf(t, s.Name).Size)
}
