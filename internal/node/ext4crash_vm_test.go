//go:build vm

package node

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestExt4FirstMountKilledAfterEveryStep(t *testing.T) {
	m := newMachine(t)
	s := m.ext4Volume("data", 16*volume.MiB)
	target, deaths := m.target("a"), 0
	untilAlive(t, call{Dir: m.dir, Verb: "mount", Spec: s, Target: target}, func() {
		m.clear(s.Name)
		require.NoError(t, m.records.remove(s.Group, s.Name))
	}, func(step int) {
		deaths++
		require.True(t, isMounted(target))
		require.Equal(t, []string{"data"}, lvs(), "one volume after death %d", step)
		size, used, _ := df(t, target)
		require.Equal(t, s.Size, size)
		require.Equal(t, volume.Block, used)
		require.Equal(t, volume.Ready, tagsOf(t, s.Name).State)
		require.Equal(t, s.Size-volume.Block, fillExt4(t, target+"/data"))
		at, err := ext4Kind{}.usedAt(devicePath(s), use{tags: tagsOf(t, s.Name)})
		require.NoError(t, err)
		require.Equal(t, volume.Ext4Group, at)
	})
	require.Equal(t, 11, deaths, "lvcreate, mkfs, mark; attach, set project, grow, set quota; write record, tag ready, record ready; move mount")
}

func TestExt4ExpandKilledAfterEveryStep(t *testing.T) {
	m := newMachine(t)
	s := m.ext4Volume("data", 16*volume.MiB)
	target := m.target("a")
	untilAlive(t, call{Dir: m.dir, Verb: "expand", Spec: s, Size: grown}, func() {
		m.clear(s.Name)
		require.NoError(t, m.records.remove(s.Group, s.Name))
		m.mount(s, "a")
		require.NoError(t, os.WriteFile(target+"/f", []byte("kept"), 0o600))
	}, func(int) {
		require.FileExists(t, target+"/f")
		size, used, free := df(t, target)
		require.Equal(t, grown, size)
		require.Equal(t, grown-used, free)
		require.Equal(t, grown, tagsOf(t, s.Name).Size)
		require.NoError(t, os.Remove(target+"/f"))
		requireRoom(t, target+"/data", free+volume.Block)
		m.unmount(target)
		requireExt4(t, m, s)
	})
}

// Killed at any time, not only after steps, including in the middle of LVM and mke2fs.
func TestExt4FirstMountKilledAnywhere(t *testing.T) {
	m := newMachine(t)
	s := m.ext4Volume("data", 16*volume.MiB)
	c := call{Dir: m.dir, Verb: "mount", Spec: s, Target: m.target("a")}
	began := time.Now()
	require.False(t, c.run(t))
	whole, killed, rounds := time.Since(began), 0, 6
	if inFull() {
		rounds = 24
	}
	for i := range rounds {
		m.clear(s.Name)
		require.NoError(t, m.records.remove(s.Group, s.Name))
		if c.runFor(t, whole*time.Duration(2*i+1)/time.Duration(2*rounds)) {
			killed++
		}
		require.Eventually(t, func() bool { return m.tryMount(s, c.Target) == nil }, 2*time.Minute, 50*time.Millisecond)
		require.Equal(t, []string{"data"}, lvs())
		require.Equal(t, s.Size-volume.Block, fillExt4(t, c.Target+"/data"))
		m.unmount(c.Target)
		requireExt4(t, m, s)
		st, err := os.Stat(m.mount(s, "a") + "/data")
		require.NoError(t, err)
		require.EqualValues(t, s.Size-volume.Block, st.Size())
	}
	t.Logf("killed %d of %d calls within %s", killed, rounds, whole)
	require.Positive(t, killed)
}

func (m *machine) ext4CloneOf(s volume.Spec, name string, size volume.Bytes) volume.Spec {
	m.t.Helper()
	c := m.cloneOf(s, name, size)
	c.FSType = volume.Ext4
	return c
}

func requireExt4Clone(t *testing.T, s volume.Spec) {
	t.Helper()
	tags := tagsOf(t, s.Name)
	require.Equal(t, volume.Ready, tags.State)
	require.Empty(t, tags.Clone)
	require.Equal(t, s.Size, tags.Size)
	id, err := ext4Kind{}.uuid(devicePath(s))
	require.NoError(t, err)
	require.Equal(t, tags.FS, id)
	require.NotEqual(t, tagsOf(t, s.CloneOf).FS, id)
}

// The copy holds what was synced, and both volumes can be mounted at the same time.
func TestExt4Clone(t *testing.T) {
	m, _ := thinMachine(t, 4*volume.GiB)
	s := m.ext4Volume("source", 64*volume.MiB)
	from := m.mount(s, "a")
	sum := randomFile(t, from+"/kept", 20*volume.MiB)
	c := m.ext4CloneOf(s, "copy", grown)
	require.NoError(t, m.CreateCloneAhead(m.ctx(), c))
	requireExt4Clone(t, c)
	to := m.mount(c, "b")
	require.Equal(t, sum, sumOf(t, to+"/kept"))
	size, used, free := df(t, to)
	require.Equal(t, grown, size)
	require.NoError(t, os.WriteFile(to+"/of the copy", nil, 0o600))
	require.NoFileExists(t, from+"/of the copy")
	requireRoom(t, to+"/fill", size-used)
	require.NotZero(t, free)
	require.NoError(t, os.Remove(from+"/kept"))
	require.Equal(t, sum, sumOf(t, to+"/kept"))
	m.unmount(to)
	m.unmount(from)
	requireExt4(t, m, c)
	requireExt4(t, m, s)

	again := m.ext4CloneOf(c, "again", grown)
	require.Equal(t, sum, sumOf(t, m.mount(again, "c")+"/kept"), "by its first mount, of a copy")
	requireExt4Clone(t, again)
	x := m.cloneOf(c, "xfs", grown)
	require.ErrorContains(t, m.CreateCloneAhead(m.ctx(), x), "was created with ext4, and a copy of it cannot be xfs")
	require.NotContains(t, lvs(), "xfs")
}

func TestExt4CloneKilledAfterEveryStep(t *testing.T) {
	m, _ := thinMachine(t, 4*volume.GiB)
	s := m.ext4Volume("source", 64*volume.MiB)
	sum := randomFile(t, m.mount(s, "a")+"/kept", 10*volume.MiB)
	c := m.ext4CloneOf(s, "copy", 256*volume.MiB)
	deaths := 0
	untilAlive(t, call{Dir: m.dir, Verb: "clone", Spec: c}, func() {
		m.clear(c.Name)
		require.NoError(t, m.records.remove(c.Group, c.Name))
	}, func(step int) {
		deaths++
		requireExt4Clone(t, c)
		require.ElementsMatch(t, []string{"source", "copy"}, lvs(), "after death %d", step)
		to := m.mount(c, "b")
		require.Equal(t, sum, sumOf(t, to+"/kept"))
		size, _, _ := df(t, to)
		require.Equal(t, c.Size, size)
		m.unmount(to)
		requireExt4(t, m, c)
	})
	require.Equal(t, 9, deaths, "snapshot; replay log, set UUID; lvextend; attach, set project, grow, set quota; tag ready")
}
