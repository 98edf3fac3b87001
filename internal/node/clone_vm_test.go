//go:build vm

package node

import (
	"crypto/sha256"
	"fmt"
	"math/rand"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// cloneOf returns the spec of a copy of s.
func (m *machine) cloneOf(s volume.Spec, name string, size volume.Bytes) volume.Spec {
	m.t.Helper()
	c := m.volume(name, size)
	c.CloneOf = s.Name
	return c
}

// randomFile writes and syncs a unique file, and returns its checksum.
func randomFile(t *testing.T, file string, size volume.Bytes) string {
	t.Helper()
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	require.NoError(t, os.WriteFile(file, b, 0o600))
	f, err := os.Open(file)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
	return sumOf(t, file)
}

func sumOf(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	return fmt.Sprintf("%x", sha256.Sum256(b))
}

// writes keeps writing to a directory until stop is closed.
func writes(wg *sync.WaitGroup, dir string, stop chan struct{}) {
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				_ = os.WriteFile(fmt.Sprintf("%s/w%d", dir, i%16), make([]byte, 256<<10), 0o600)
			}
		}
	})
}

func requireClone(t *testing.T, s volume.Spec) {
	t.Helper()
	tags := tagsOf(t, s.Name)
	require.Equal(t, volume.Ready, tags.State)
	require.Empty(t, tags.Clone)
	require.Equal(t, s.Size, tags.Size)
	d, err := lvm.FindDevice(group, s.Name)
	require.NoError(t, err)
	id, err := xfsKind{}.uuid(d.Path)
	require.NoError(t, err)
	require.Equal(t, tags.FS, id)
	require.NotEqual(t, tagsOf(t, s.CloneOf).FS, id)
}

// A copy that does not fit into its pool is not started: each attempt would freeze the source.
func TestCloneWithoutRoomIsNotBegun(t *testing.T) {
	m := newMachine(t)
	m.shape = volume.Shape{Layout: volume.Thin, ThinPool: testPool}
	m.thinPool(2 * volume.GiB)
	s := m.volume("source", 64*volume.MiB)
	m.mount(s, "source")
	c := m.cloneOf(s, "copy", 8*volume.GiB)
	var steps []string
	m.after = func(step string) { steps = append(steps, step) }
	require.ErrorIs(t, m.CreateCloneAhead(m.ctx(), c), lvm.ErrNoSpace)
	require.Empty(t, steps)
	require.Equal(t, []string{"source"}, lvs())
}

// The copy holds everything that was synced, even while other processes write. Both volumes are mounted at
// the same time, and neither shows changes of the other.
func TestCloneOfAVolumeInUse(t *testing.T) {
	m, _ := thinMachine(t, 4*volume.GiB)
	s := m.volume("source", 96*volume.MiB)
	from := m.mount(s, "a")
	sum := randomFile(t, from+"/kept", 20*volume.MiB)
	_, quiet, _ := df(t, from)

	same := m.cloneOf(s, "same", s.Size)
	require.NoError(t, m.CreateCloneAhead(m.ctx(), same))
	requireClone(t, same)
	require.NoError(t, m.CreateCloneAhead(m.ctx(), same), "it is there already")
	size, used, _ := df(t, m.mount(same, "same"))
	require.Equal(t, s.Size, size)
	require.Equal(t, quiet, used, "what the source has used")
	m.unmount(m.target("same"))
	requireWhole(t, m, same)

	stop, wg := make(chan struct{}), sync.WaitGroup{}
	writes(&wg, from, stop)
	time.Sleep(time.Second)
	c := m.cloneOf(s, "copy", s.Size)
	began := time.Now()
	require.NoError(t, m.CreateCloneAhead(m.ctx(), c))
	t.Logf("the copy of a volume that is being written to took %s", time.Since(began))
	close(stop)
	wg.Wait()
	requireClone(t, c)

	to := m.mount(c, "b")
	require.Equal(t, sum, sumOf(t, to+"/kept"))
	require.NoError(t, os.WriteFile(to+"/of the copy", nil, 0o600))
	require.NoFileExists(t, from+"/of the copy")
	require.NoError(t, os.Remove(from+"/kept"))
	require.Equal(t, sum, sumOf(t, to+"/kept"))
	_, used, _ = df(t, to)
	require.Equal(t, s.Size, used+fill(t, to+"/fill"), "to the byte")

	in, err := m.List(m.ctx())
	require.NoError(t, err)
	require.Len(t, in, 3)
	for _, v := range in {
		require.False(t, v.HasSnapshots, "%s: no snapshot goes with a thin volume", v.Name)
		require.Empty(t, v.Problem)
		require.Empty(t, v.CloneOfFS)
		require.Equal(t, m.shape, v.Shape)
	}
	for _, n := range []volume.Name{s.Name, c.Name} {
		require.Equal(t, []string{"5", "5", "5"}, retries(t, m, n))
	}
}

// requireWhole checks a file system that is not mounted.
func requireWhole(t *testing.T, m *machine, s volume.Spec) {
	t.Helper()
	m.shell("xfs_repair -n "+frugally+" /dev/mapper/%s", volume.DeviceName(group, s.Name))
}

// frugally are options of xfs_repair that do not change its findings: no threads that read ahead, and no
// caches for a large disk. With the defaults, it takes some seconds on a virtual node.
const frugally = "-P -o bhash=64"

// The first mount creates the copy if no call has before. The copy has the requested size and is a volume
// like any other: it grows, survives a boot, and can be copied.
func TestCloneThatIsLarger(t *testing.T) {
	m, _ := thinMachine(t, 4*volume.GiB)
	s := m.volume("source", 64*volume.MiB)
	from := m.mount(s, "a")
	sum := randomFile(t, from+"/kept", 10*volume.MiB)

	c := m.cloneOf(s, "copy", grown)
	c.Inodes = 1000
	to := m.mount(c, "b")
	requireClone(t, c)
	size, used, _ := df(t, to)
	require.Equal(t, grown, size)
	require.Equal(t, sum, sumOf(t, to+"/kept"))
	require.Equal(t, grown, used+allocate(t, to+"/fill"))
	m.unmount(to)
	requireWhole(t, m, c)

	require.NoError(t, m.Expand(m.ctx(), c, 2*grown))
	m.shell("lvchange -an %s/%s", group, c.Name)
	require.Empty(t, m.shell("lvs --noheadings -o lv_active %s/%s", group, c.Name))
	m.shell("lvchange -ay %s/%s", group, c.Name)
	require.Equal(t, "active", m.shell("lvs --noheadings -o lv_active %s/%s", group, c.Name), "as at every boot")
	to = m.mount(c, "b")
	size, _, _ = df(t, to)
	require.Equal(t, 2*grown, size)

	again := m.cloneOf(c, "again", 2*grown)
	again.Inodes = 1000
	require.NoError(t, m.CreateCloneAhead(m.ctx(), again))
	requireClone(t, again)
	require.Equal(t, sum, sumOf(t, m.mount(again, "c")+"/kept"))
	m.unmount(m.target("c"))
	requireWhole(t, m, again)
}

func TestCloneKilledAfterEveryStep(t *testing.T) {
	m, _ := thinMachine(t, 4*volume.GiB)
	s := m.volume("source", 64*volume.MiB)
	from := m.mount(s, "a")
	sum := randomFile(t, from+"/kept", 10*volume.MiB)
	_, before, _ := df(t, from)
	c := m.cloneOf(s, "copy", 128*volume.MiB)
	start := func() {
		m.clear(c.Name)
		require.NoError(t, m.records.remove(c.Group, c.Name))
	}
	deaths := 0
	check := func(step int) {
		deaths++
		requireClone(t, c)
		require.ElementsMatch(t, []string{"source", "copy"}, lvs(), "after death %d", step)
		to := m.mount(c, "b")
		require.Equal(t, sum, sumOf(t, to+"/kept"))
		size, used, _ := df(t, to)
		require.Equal(t, c.Size, size)
		require.Equal(t, before, used)
		m.unmount(to)
		requireWhole(t, m, c)
	}
	once := func(dying call) {
		start()
		require.True(t, dying.run(t), dying.Die)
		step := dying.Die
		dying.Die = 0
		require.False(t, dying.run(t))
		check(step)
	}
	// A first mount has the same steps, and some more.
	deathsOfMount, deathsAnew := []int{11}, []int{2}
	if inFull() {
		deathsOfMount, deathsAnew = []int{3, 10, 11, 12}, []int{1, 2}
		untilAlive(t, call{Dir: m.dir, Verb: "clone", Spec: c}, start, check)
		require.Equal(t, 9, deaths, "snapshot; replay log, set UUID; lvextend; attach, set project, grow, set quota; tag ready")
	} else { // each takes a virtual node twenty seconds
		for _, die := range []int{1, 3, 7} {
			once(call{Dir: m.dir, Verb: "clone", Spec: c, Die: die})
		}
	}
	for _, die := range deathsOfMount {
		once(call{Dir: m.dir, Verb: "mount", Spec: c, Target: m.target("b"), Die: die})
	}
	// A copy that is created again is killed as well.
	for _, die := range deathsAnew {
		start()
		require.True(t, call{Dir: m.dir, Verb: "clone", Spec: c, Die: 3}.run(t))
		require.True(t, call{Dir: m.dir, Verb: "clone", Spec: c, Die: die}.run(t))
		require.NoError(t, m.CreateCloneAhead(m.ctx(), c))
		check(0)
	}
}

// Killed at any time, not only after steps, including in the middle of LVM and xfs_db.
func TestCloneKilledAnywhere(t *testing.T) {
	m, _ := thinMachine(t, 4*volume.GiB)
	s := m.volume("source", 64*volume.MiB)
	sum := randomFile(t, m.mount(s, "a")+"/kept", 10*volume.MiB)
	c := m.cloneOf(s, "copy", s.Size)
	began := time.Now()
	require.False(t, call{Dir: m.dir, Verb: "clone", Spec: c}.run(t))
	whole, killed := time.Since(began), 0
	rounds := 2
	if inFull() {
		rounds = 8
	}
	calls := 0
	for ; calls < rounds || killed == 0 && calls < 5*rounds; calls++ {
		m.clear(c.Name)
		at := whole * time.Duration(2*(calls%rounds)+1) / time.Duration(2*rounds)
		began := time.Now()
		if (call{Dir: m.dir, Verb: "clone", Spec: c}).runFor(t, at) {
			killed++
		} else {
			whole = min(whole, time.Since(began)) // the first call was slower than usual
		}
		require.Eventually(t, func() bool { return m.CreateCloneAhead(m.ctx(), c) == nil }, 2*time.Minute, 50*time.Millisecond)
		requireClone(t, c)
		to := m.mount(c, "b")
		require.Equal(t, sum, sumOf(t, to+"/kept"))
		m.unmount(to)
		requireWhole(t, m, c)
		require.NoError(t, m.records.remove(c.Group, c.Name))
	}
	t.Logf("killed %d of %d calls within %s", killed, calls, whole)
	require.Positive(t, killed)
}

// Once the copy is complete, either volume can be removed, and the other stays intact.
func TestCloneAndSourceGoApart(t *testing.T) {
	m, _ := thinMachine(t, 4*volume.GiB)
	s := m.volume("source", 64*volume.MiB)
	from := m.mount(s, "a")
	sum := randomFile(t, from+"/kept", 10*volume.MiB)
	first, second := m.cloneOf(s, "first", s.Size), m.cloneOf(s, "second", s.Size)
	require.NoError(t, m.CreateCloneAhead(m.ctx(), first))
	require.NoError(t, m.Release(m.ctx(), refOf(first), volume.Unreferenced, volume.Disposal{Wipe: volume.WipeDiscard}))
	require.NoError(t, m.Remove(m.ctx(), refOf(first)))
	require.Equal(t, sum, sumOf(t, from+"/kept"))
	m.unmount(from)
	requireWhole(t, m, s)

	// A volume that was given up, but whose data still exists, can be copied.
	require.NoError(t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{Wipe: volume.WipeDiscard}))
	m.shell("lvchange -an %s/%s", group, s.Name)
	require.NoError(t, m.CreateCloneAhead(m.ctx(), second))
	requireClone(t, second)
	require.NoError(t, m.Remove(m.ctx(), refOf(s)))
	require.Equal(t, []string{"second"}, lvs())
	to := m.mount(second, "b")
	require.Equal(t, sum, sumOf(t, to+"/kept"))
	m.unmount(to)
	requireWhole(t, m, second)
	require.NoError(t, m.CreateCloneAhead(m.ctx(), second), "it needs its source no more")
}

func TestCloneOfWrongSources(t *testing.T) {
	m, _ := thinMachine(t, 4*volume.GiB)
	s := m.volume("source", 64*volume.MiB)
	mountFails := func(c volume.Spec, is error, says string) {
		t.Helper()
		for _, err := range []error{m.CreateCloneAhead(m.ctx(), c), m.tryMount(c, m.target("b"))} {
			require.ErrorIs(t, err, is)
			require.ErrorContains(t, err, says)
		}
		require.NotContains(t, lvs(), string(c.Name), "nothing was made")
	}
	c := m.cloneOf(s, "copy", s.Size)
	mountFails(c, lvm.ErrNoVolume, "no empty volume is created instead")
	half := tagsFor(s, volume.Creating)
	m.half(s, half)
	mountFails(c, ErrRefused, "is not created yet")
	m.clear(s.Name)
	m.unmount(m.mount(s, "a"))

	other := c
	other.Namespace = "another"
	mountFails(other, ErrRefused, `belongs to namespace "default", not to "another"`)
	other = c
	other.Cluster = "another"
	mountFails(other, ErrRefused, "was created for cluster")
	other = c
	other.Size = s.Size - volume.MiB
	mountFails(other, ErrRefused, "delete the claim of the copy and ask for more")
	other = c
	other.CloneOf = testPool
	require.Error(t, m.CreateCloneAhead(m.ctx(), other))

	m.shape = volume.Shape{Layout: volume.Linear}
	thick := m.volume("thick", 64*volume.MiB)
	m.unmount(m.mount(thick, "thick"))
	other = c
	other.CloneOf = thick.Name
	mountFails(other, ErrRefused, "is no thin volume in pool")

	// A source without the file system that it should hold is left to a person.
	m.shell("dd if=/dev/zero of=/dev/mapper/%s bs=64k count=1 conv=fsync 2>/dev/null", volume.DeviceName(group, s.Name))
	mountFails(c, ErrDamaged, "restore it")
}

func tagsFor(s volume.Spec, state volume.State) volume.Tags {
	return volume.Tags{State: state, FS: sourceFS, Size: s.Size, Namespace: s.Namespace, Cluster: s.Cluster, Kind: s.Kind}
}

// An unfinished copy whose source is gone stays as it is: it is not removed or formatted, and no pod gets it.
func TestHalfACloneWithoutItsSource(t *testing.T) {
	m, _ := thinMachine(t, 4*volume.GiB)
	s := m.volume("source", 64*volume.MiB)
	from := m.mount(s, "a")
	sum := randomFile(t, from+"/kept", volume.MiB)
	m.unmount(from)
	c := m.cloneOf(s, "copy", s.Size)
	require.True(t, call{Dir: m.dir, Verb: "clone", Spec: c, Die: 2}.run(t))
	require.Equal(t, tagsOf(t, s.Name).FS, tagsOf(t, c.Name).Clone)
	m.clear(s.Name)
	for range 2 {
		require.ErrorIs(t, m.CreateCloneAhead(m.ctx(), c), lvm.ErrNoVolume)
		require.ErrorIs(t, m.tryMount(c, m.target("b")), lvm.ErrNoVolume)
	}
	plain := c
	plain.CloneOf = ""
	require.ErrorIs(t, m.tryMount(plain, m.target("b")), ErrRefused)
	require.NoError(t, m.Heal(m.ctx(), refOf(c)))
	_, err := m.SetState(m.ctx(), group, c.Name, volume.Ready)
	require.ErrorIs(t, err, ErrRefused)
	require.Equal(t, volume.Creating, tagsOf(t, c.Name).State)
	m.shell("mkdir -p %s/look && mount -o nouuid /dev/mapper/%s %s/look", m.dir, volume.DeviceName(group, c.Name), m.dir)
	require.Equal(t, sum, sumOf(t, m.dir+"/look/kept"), "a person can save it")
	m.shell("umount %s/look", m.dir)

	require.NoError(t, m.Release(m.ctx(), refOf(c), volume.Unreferenced, volume.Disposal{}))
	require.NoError(t, m.Remove(m.ctx(), refOf(c)), "its claim was deleted")
	require.Empty(t, lvs())
}
