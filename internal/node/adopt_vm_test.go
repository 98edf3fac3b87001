//go:build vm

package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/quota"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// foreign are the commands that format a person's logical volumes. That of ext4 has the default features
// before e2fsprogs 1.47.1.
var foreign = map[volume.FSType]string{
	volume.XFS:  "mkfs.xfs -q -f",
	volume.Ext4: "mke2fs -q -F -t ext4 -b 4096 -O quota,project,^metadata_csum_seed -E quotatype=prjquota",
}

// byHand creates a logical volume as a person would, with a few files of every kind on it, and removes it
// after the test.
func (m *machine) byHand(name, mkfs string) Adoption {
	m.t.Helper()
	a := Adoption{Group: group, Name: volume.Name(name), Namespace: "default", Cluster: cluster}
	m.t.Cleanup(func() { m.clear(a.Name) })
	m.clear(a.Name)
	m.shell("lvcreate --yes --quiet --addtag theirs --size 400M --name %s %s", name, group)
	if mkfs == "" {
		return a
	}
	m.shell("%s %s", mkfs, pathOf(a))
	m.onceMounted(a, func(dir string) {
		m.shell(`cd %s; mkdir -p a/b "$(printf 'latin\351')"; head -c 5000000 /dev/urandom >a/b/data; ln a/b/data hard; ln -s a/b/data soft; mkfifo pipe; mknod null c 1 3
			: >"$(printf 'latin\351/\377')"; chmod 0 a/b/data; sha256sum a/b/data >sum`, dir)
	})
	return a
}

func pathOf(a Adoption) string { return "/dev/mapper/" + volume.DeviceName(a.Group, a.Name) }

// onceMounted mounts a logical volume as a person would.
func (m *machine) onceMounted(a Adoption, do func(dir string)) {
	m.t.Helper()
	dir := m.target("by-hand")
	m.shell("mount %s %s", pathOf(a), dir)
	defer m.shell("umount %s", dir)
	do(dir)
}

func rawTags(a Adoption) string {
	return shellOut(fmt.Sprintf("lvs --noheadings -o lv_tags %s", a))
}

// spec returns the spec in the PersistentVolume of an adopted volume.
func (a Adoption) spec(t *testing.T) volume.Spec {
	tags := tagsOf(t, a.Name)
	s := specOf(string(a.Name), tags.Size)
	s.FS, s.FSType, s.Cluster = tags.FS, tags.FSType, tags.Cluster
	return s
}

// A pod finds all files of an adopted volume, counted in its quota, and gets the promised size. A disowned
// volume is as it was before. Both operations are killed after each of their steps; for ext4, where they are
// the same, only in `make campaign`.
func TestAdoptAndDisown(t *testing.T) {
	for kind, mkfs := range foreign {
		t.Run(kind.String(), func(t *testing.T) { testAdoptAndDisown(t, mkfs, kind == volume.XFS || inFull()) })
	}
}

func testAdoptAndDisown(t *testing.T, mkfs string, kill bool) {
	m := newMachine(t)
	a, died := m.adoptKilledAfterEveryStep("wiki", mkfs, kill)
	require.Equal(t, kill, died > 5, "tags; attach, projects, grow, quota; tags")
	require.Contains(t, rawTags(a), "theirs")
	_, err := m.Adopt(m.ctx(), a)
	require.ErrorIs(t, err, ErrRefused, "it is one already")

	s := a.spec(t)
	require.ErrorIs(t, m.tryMount(s, m.target("a")), ErrRefused, "it is retained")
	_, err = m.SetStateOf(m.ctx(), refOf(s), s.FS, volume.Ready)
	require.NoError(t, err)
	checkAdopted(t, m, m.mount(s, "a"), s)
	require.ErrorIs(t, m.Disown(m.ctx(), group, a.Name), ErrRefused, "it is ready")
	m.unmount(m.target("a"))
	require.Equal(t, s.FSType == volume.Ext4, tagsOf(t, a.Name).Fixed, "mke2fs keeps blocks for root, and mkfs.xfs does not")
	if s.FSType == volume.Ext4 {
		require.ErrorContains(t, m.Expand(m.ctx(), s, s.Size+volume.MiB), "reserves more space for its own metadata")
	}

	_, err = m.SetState(m.ctx(), group, a.Name, volume.Retained)
	require.NoError(t, err)
	untilAlive(t, call{Dir: m.dir, Verb: "disown", Spec: s}, func() {
		if !strings.Contains(rawTags(a), "flexlvm") {
			_, err := m.Adopt(m.ctx(), a)
			require.NoError(t, err)
		}
	}, func(int) { require.Equal(t, "theirs", rawTags(a)) })
	m.onceMounted(a, func(dir string) { m.shell("cd %s; sha256sum --quiet --check sum", dir) })
	m.checkGone(a, s)
	m.checkSmaller(a)
	m.checkAnotherCluster(a)
}

// checkGone checks that no call replaces a disowned volume with an empty one, even if a person has renamed
// it.
func (m *machine) checkGone(a Adoption, s volume.Spec) {
	t := m.t
	t.Helper()
	s.FS = ""
	require.ErrorIs(t, m.tryMount(s, m.target("a")), ErrRefused, "it is not ours any more")
	m.shell("lvrename --quiet %s %s mine", a.Group, a.Name)
	defer m.shell("lvrename --quiet %s mine %s", a.Group, a.Name)
	require.ErrorIs(t, m.tryMount(s, m.target("a")), ErrLost)
}

// checkAnotherCluster moves the volume to another cluster, as docs/undelete.md describes.
func (m *machine) checkAnotherCluster(a Adoption) {
	t := m.t
	t.Helper()
	_, err := m.SetState(m.ctx(), group, a.Name, volume.Retained)
	require.NoError(t, err)
	require.NoError(t, m.Disown(m.ctx(), group, a.Name))
	a.Cluster = "0c4bb8a9-5b0a-4c0e-8d1e-2f6f1f0d9a11"
	_, err = m.Adopt(m.ctx(), a)
	require.NoError(t, err)
	s := a.spec(t)
	_, err = m.SetStateOf(m.ctx(), refOf(s), s.FS, volume.Ready)
	require.NoError(t, err)
	require.Equal(t, a.Cluster, tagsOf(t, a.Name).Cluster)
	m.shell("cd %s; sha256sum --quiet --check sum", m.mount(s, "a"))
	m.unmount(m.target("a"))
}

// checkSmaller adopts the volume again, with a smaller quota than before, after an attempt that was killed
// and after the file system got another UUID.
func (m *machine) checkSmaller(a Adoption) {
	t := m.t
	t.Helper()
	c := call{Dir: m.dir, Verb: "adopt", Spec: specOf(string(a.Name), 1), Die: 2}
	require.True(t, c.run(t))
	was := tagsOf(t, a.Name)
	m.onceMounted(a, func(string) {}) // its log must be empty
	if was.FSType == volume.Ext4 {
		m.shell("e2fsck -fp %s >/dev/null; tune2fs -U random %[1]s >/dev/null", pathOf(a))
	} else {
		m.shell("xfs_admin -U generate %s >/dev/null", pathOf(a))
	}
	a.Size = 64 * volume.MiB
	_, err := m.Adopt(m.ctx(), a)
	require.NoError(t, err)
	s := a.spec(t)
	require.NotEqual(t, was.FS, s.FS)
	_, err = m.SetStateOf(m.ctx(), refOf(s), s.FS, volume.Ready)
	require.NoError(t, err)
	size, _, _ := df(t, m.mount(s, "a"))
	require.Equal(t, a.Size, size)
	m.unmount(m.target("a"))
}

// adoptKilledAfterEveryStep returns the last adoption, and how often the call was killed.
func (m *machine) adoptKilledAfterEveryStep(name, mkfs string, kill bool) (Adoption, int) {
	t := m.t
	t.Helper()
	for died := 0; ; died++ {
		a := m.byHand(name, mkfs)
		c := call{Dir: m.dir, Verb: "adopt", Spec: specOf(name, 1)}
		if kill {
			c.Die = died + 1
		}
		if !c.run(t) {
			return a, died
		}
		require.Contains(t, rawTags(a), "flexlvm.state=retained", "from the first step on, after death %d", c.Die)
		if tagsOf(t, a.Name).Adopting {
			c.Die = 0
			require.False(t, c.run(t), "the same call again, after death %d", died)
		}
		tags := tagsOf(t, a.Name)
		require.Equal(t, volume.Retained, tags.State)
		require.False(t, tags.Adopting)
		m.onceMounted(a, func(dir string) { m.shell("cd %s; sha256sum --quiet --check sum; test -L soft; test -p pipe", dir) })
	}
}

// checkAdopted checks an adopted volume from its pod's point of view.
func checkAdopted(t *testing.T, m *machine, dir string, s volume.Spec) {
	t.Helper()
	m.shell("cd %s; sha256sum --quiet --check sum; mv a/b/data a/new; mv hard a/b/; ln a/new a/b/data; mkdir new; echo >new/file", dir)
	size, used, _ := df(t, dir)
	require.Equal(t, s.Size, size)
	require.Greater(t, used, volume.Bytes(5_000_000), "what was there before counts")
	if s.FSType != volume.XFS {
		return
	}
	full := filepath.Join(dir, "full")
	allocate(t, full)
	defer func() { require.NoError(t, os.Remove(full)) }()
	usage, err := quota.Read(devicePath(s))
	require.NoError(t, err)
	require.Less(t, s.Size-usage.Used, 64*volume.KiB, "all that is promised can be had, what was there before included")
}

// Neither a refusal nor a dry run writes to the logical volume.
func TestAdoptionRefused(t *testing.T) {
	m := newMachine(t)
	xfs := foreign[volume.XFS]
	refusedFor := func(a Adoption, says string) {
		t.Helper()
		before, written := rawTags(a), m.written(pathOf(a))
		_, err := m.Adopt(m.ctx(), a)
		require.ErrorContains(t, err, says)
		require.Equal(t, before, rawTags(a))
		require.Equal(t, written, m.written(pathOf(a)))
		require.False(t, m.stillOpen(a))
	}
	a := m.byHand("wiki", "")
	m.shell("dd if=/dev/zero of=%s bs=1M count=2 conv=fsync status=none", pathOf(a))
	refusedFor(a, "no file system is on logical volume flexlvm-test/wiki")
	// A partition of Linux' from sector 2048 on.
	m.shell(`printf '\000\000\000\000\203\000\000\000\000\010\000\000\000\100\000\000' | dd of=%s bs=1 seek=446 status=none; printf '\125\252' | dd of=%[1]s bs=1 seek=510 conv=fsync status=none`, pathOf(a))
	refusedFor(a, "dos, and neither XFS nor ext4")
	m.shell("mkfs.vfat %s >/dev/null || mkswap -q %[1]s", pathOf(a))
	refusedFor(a, "logical volume flexlvm-test/wiki")

	a = m.byHand("wiki", "mke2fs -q -F -t ext4")
	refusedFor(a, "its blocks are not of 4 KiB")
	a = m.byHand("wiki", "mke2fs -q -F -t ext4 -b 4096")
	refusedFor(a, "has no project quota")
	m.shell("e2fsck -fp %s >/dev/null; tune2fs -O project -Q prjquota %[1]s >/dev/null", pathOf(a))
	_, err := m.PlanAdoption(m.ctx(), a)
	require.NoError(t, err, "the commands that the refusal names are enough")

	a = m.byHand("wiki", xfs)
	m.onceMounted(a, func(dir string) {
		_, err := m.Adopt(m.ctx(), a)
		require.ErrorIs(t, err, ErrInUse)
		require.ErrorContains(t, err, "it is mounted on "+dir)
	})
	more := a
	more.Size = volume.GiB
	refusedFor(more, "holds a volume of")
	m.shell("lvcreate --yes --quiet --snapshot --size 8M --name shot %s", a)
	refusedFor(a, "has snapshots")
	shot := a
	shot.Name = "shot"
	refusedFor(shot, "is a snapshot of another")
	m.shell("lvremove --yes %s", shot)

	before := m.written(pathOf(a))
	v, err := m.PlanAdoption(m.ctx(), a)
	require.NoError(t, err)
	require.Equal(t, "theirs", rawTags(a))
	require.Equal(t, before, m.written(pathOf(a)), "a dry run writes nothing")
	made, err := m.Adopt(m.ctx(), a)
	require.NoError(t, err)
	require.Equal(t, v.Size, made.Size)
	require.Equal(t, v.FS, made.FS)

	copied := m.byHand("copied", "")
	m.shell("dd if=%s of=%s bs=4M conv=fsync status=none", pathOf(a), pathOf(copied))
	refusedFor(copied, "as that of volume flexlvm-test/wiki: it is a copy")
}

// stillOpen reports whether a refused call has left the device mounted.
func (m *machine) stillOpen(a Adoption) bool {
	m.t.Helper()
	f, err := os.OpenFile(pathOf(a), os.O_RDONLY|unix.O_EXCL, 0)
	if err != nil {
		require.ErrorIs(m.t, err, unix.EBUSY)
		return true
	}
	require.NoError(m.t, f.Close())
	return false
}

// Files of other projects keep their project, and the adoption can be undone.
func TestAdoptionOfOtherProjects(t *testing.T) {
	m := newMachine(t)
	a := m.byHand("wiki", foreign[volume.XFS])
	m.onceMounted(a, func(dir string) { m.shell("chattr -p 7 %s/a/b", dir) })
	_, err := m.Adopt(m.ctx(), a)
	require.ErrorContains(t, err, "/a/b belongs to a project of its own, 7")
	require.ErrorContains(t, err, "flexlvm volumes disown wiki --group flexlvm-test")
	require.True(t, tagsOf(t, a.Name).Adopting)
	for _, to := range []volume.State{volume.Ready, volume.Unreferenced} {
		_, err = m.SetState(m.ctx(), group, a.Name, to)
		require.ErrorIs(t, err, ErrRefused)
	}
	other := a
	other.Namespace = "other"
	_, err = m.Adopt(m.ctx(), other)
	require.ErrorIs(t, err, ErrRefused)
	m.onceMounted(a, func(dir string) { require.Contains(t, m.shell("lsattr -pd %s/a/b", dir), "7 ") })
	require.NoError(t, m.Disown(m.ctx(), group, a.Name))
	require.Equal(t, "theirs", rawTags(a))

	m.onceMounted(a, func(dir string) { m.shell("chattr -p 0 %s/a/b", dir) })
	_, err = m.Adopt(m.ctx(), a)
	require.NoError(t, err)
}

// A snapshot of an adopted volume can be restored even if its file system was mounted since it was last
// checked.
func TestSnapshotOfAnAdoptedVolumeIsRestored(t *testing.T) {
	for kind, mkfs := range foreign {
		t.Run(kind.String(), func(t *testing.T) {
			m := newMachine(t)
			a := m.byHand("wiki", mkfs)
			_, err := m.Adopt(m.ctx(), a)
			require.NoError(t, err)
			s := a.spec(t)
			_, err = m.SetStateOf(m.ctx(), refOf(s), s.FS, volume.Ready)
			require.NoError(t, err)
			from := m.mount(s, "a")
			sum := randomFile(t, from+"/kept", 10*volume.MiB)
			snap := m.storeOf(s, "snap", 0)
			m.snapshotNow(snap)
			require.NoError(t, os.Remove(from+"/kept"))
			m.unmount(from)
			c := m.copyOf(snap, "copy", shapes[0], s.Size)
			require.NoError(t, m.CreateCloneAhead(m.ctx(), c))
			m.requireRestored(c, sum)
			if kind == volume.Ext4 {
				requireExt4(t, m, c)
			}
		})
	}
}
