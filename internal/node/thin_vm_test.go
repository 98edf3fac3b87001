//go:build vm

package node

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/luks"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// thinMachine returns a machine for thin volumes in a pool of this size.
func thinMachine(t *testing.T, size volume.Bytes) (*machine, lvm.ThinPool) {
	t.Helper()
	m := newMachine(t)
	m.shape = volume.Shape{Layout: volume.Thin, ThinPool: testPool}
	return m, m.thinPool(size)
}

// requireThinInventory checks an inventory of one thin volume of 64 MiB.
func requireThinInventory(t *testing.T, in inventory.Inventory) {
	t.Helper()
	p, v := in.Pools[1], in.Volumes[0]
	require.Equal(t, volume.PoolOf(group, testPool), p.Name)
	require.Equal(t, 6*volume.GiB, p.Size)
	require.Equal(t, in.Pools[0].UUID, p.GroupUUID())
	require.Equal(t, 1, p.LVs)
	require.Empty(t, p.Thin.Unfit)
	require.Positive(t, p.Thin.MetadataUsed)
	require.Less(t, p.Thin.MetadataUsed, p.Thin.Metadata)
	require.Less(t, v.Allocated, v.AllocatedWhenFull)
	require.Greater(t, v.Allocated, volume.LogSize(v.Size)/2, "the log is written by mkfs")
	require.InDelta(t, float64(v.Allocated), float64(p.Size-p.Free), float64(2*volume.MiB), "the pool holds what the volume does")
}

func TestThinPoolAsItIsMade(t *testing.T) {
	m, p := thinMachine(t, 0)
	g, err := m.lvm.Group(m.ctx(), group)
	require.NoError(t, err)
	require.Zero(t, g.Free, "all of the group")
	require.Empty(t, p.Unfit())
	require.Equal(t, 64*volume.KiB, p.Chunk)
	require.Zero(t, p.Volumes)
	listed, err := m.lvm.ThinPools(m.ctx())
	require.NoError(t, err)
	require.Equal(t, []lvm.ThinPool{p}, listed)
	all, err := m.List(m.ctx())
	require.NoError(t, err)
	require.Empty(t, all, "a pool is no volume")
	in, err := m.Inventory(m.ctx())
	require.NoError(t, err)
	require.Zero(t, in.Pools[0].Size, "nothing of the group is left beside it")
	t.Logf("what LVM says of it:\n%s", m.shell("lvs -a -o +lv_tags,chunk_size,lv_when_full,zero,discards,lv_metadata_size %s", group))

	_, err = m.lvm.CreateThinPool(m.ctx(), lvm.NewThinPool{Group: group, Name: testPool})
	require.ErrorIs(t, err, lvm.ErrNoSpace)
	// It can be neither mounted nor removed as a volume.
	ref := Ref{Group: group, Name: testPool, Cluster: cluster}
	require.ErrorIs(t, m.Release(m.ctx(), ref, volume.Unreferenced, volume.Disposal{}), ErrRefused)
	require.ErrorIs(t, m.Remove(m.ctx(), ref), ErrRefused)
	_, err = m.SetState(m.ctx(), group, testPool, volume.Unreferenced)
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorIs(t, m.tryMount(specOf(string(testPool), 64*volume.MiB), m.target("a")), ErrRefused)
}

// LVM's report of thin volumes, for the golden files.
func TestThinReport(t *testing.T) {
	m, _ := thinMachine(t, 2*volume.GiB)
	for _, name := range []string{"pvc-1", "pvc-2"} {
		m.unmount(m.mount(m.volume(name, 64*volume.MiB), name))
	}
	m.shell("lvchange -an %s/pvc-2", group)
	o, err := m.lvm.Everything(m.ctx())
	require.NoError(t, err)
	require.Len(t, o.ThinPools, 1)
	require.Len(t, o.Volumes, 2)
	for i, v := range o.Volumes {
		require.Equal(t, m.shape, v.Shape)
		require.Equal(t, i == 1, v.Takes() == v.Size, "LVM does not tell of what is inactive")
	}
	m.shell("lvcreate --yes --type thin --thinpool %s --virtualsize 64m --name mine %s && dd if=/dev/urandom of=/dev/%s/mine bs=1M count=8 oflag=direct", testPool, group, group)
	m.shell("lvcreate --yes --snapshot --name copy %s/pvc-1", group)
	o, err = m.lvm.Everything(m.ctx())
	require.NoError(t, err)
	require.Len(t, o.Volumes, 2, "neither a volume of others nor their snapshot is ours")
	require.InDelta(t, float64(8*volume.MiB), float64(o.ThinPools[0].Others.Data), float64(volume.MiB))
	require.Equal(t, o.Volumes[0].Size, o.ThinPools[0].Others.Unreported, "LVM makes snapshots inactive")
	log, err := os.ReadFile(filepath.Join(m.dir, "log"))
	require.NoError(t, err)
	require.Contains(t, string(log), "fullreport")
	t.Log(m.shell(`lvm fullreport --reportformat json --units b --nosuffix --configreport vg -o vg_name,vg_size,vg_free,lv_count `+
		`--configreport lv -o lv_name,lv_uuid,lv_size,lv_tags,lv_active,lv_attr,lv_device_open,lv_health_status,sync_percent,pool_lv,data_percent,metadata_percent,lv_metadata_size,lv_when_full -S 'lv_tags={"flexlvm"}' `+
		`--configreport pv -o pv_name --configreport pvseg -o pvseg_start -S 'pvseg_start=1 && pvseg_start=2' `+
		`--configreport seg -o lv_uuid,segtype,stripes,stripe_size,thin_count,chunk_size,zero -S 'segtype!=linear && lv_tags={"flexlvm"}' %s`, group))
}

// retries returns the retry settings of the file system of a mounted volume.
func retries(t *testing.T, m *machine, n volume.Name) (out []string) {
	t.Helper()
	d, err := lvm.FindDevice(group, n)
	require.NoError(t, err)
	name := m.shell("basename $(readlink -f /sys/dev/block/%d:%d)", unix.Major(d.Number), unix.Minor(d.Number))
	for _, kind := range []string{"ENOSPC", "EIO", "default"} {
		out = append(out, m.shell("cat /sys/fs/xfs/%s/error/metadata/%s/max_retries", name, kind))
	}
	return out
}

func TestRetriesAreBoundedAtEachMount(t *testing.T) {
	m, _ := thinMachine(t, 2*volume.GiB)
	s := m.volume("data", 64*volume.MiB)
	for range 2 {
		target := m.mount(s, "a")
		require.Equal(t, []string{"5", "5", "5"}, retries(t, m, s.Name))
		m.unmount(target)
	}
	m.shape = volume.Shape{Layout: volume.Linear}
	thick := m.volume("thick", 64*volume.MiB)
	m.mount(thick, "b")
	require.Equal(t, []string{"-1", "-1", "-1"}, retries(t, m, thick.Name), "left as it is")
}

// writeUntilError writes and syncs until the kernel returns an error, and returns how much was synced.
func writeUntilError(t *testing.T, file string) (volume.Bytes, error) {
	t.Helper()
	f, err := os.Create(file)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	piece := []byte(strings.Repeat("flexlvm\n", int(volume.MiB)/8))
	for sum := volume.Bytes(0); ; sum += volume.MiB {
		if _, err := f.Write(piece); err != nil {
			return sum, err
		}
		if err := f.Sync(); err != nil {
			return sum, err
		}
	}
}

// An overcommitted pool is filled: writers get an error immediately, no process hangs, the volume can be
// unmounted, and synced data is still there when the removal of another volume has freed room.
func TestThinPoolFilledByWriters(t *testing.T) {
	m, p := thinMachine(t, 768*volume.MiB)
	a, b := m.volume("a", 600*volume.MiB), m.volume("b", 600*volume.MiB)
	targetA, targetB := m.mount(a, "a"), m.mount(b, "b")

	began := time.Now()
	inA, errA := writeUntilError(t, targetA+"/data")
	require.ErrorIs(t, errA, syscall.ENOSPC, "at the end of its quota")
	require.Less(t, inA, 600*volume.MiB+1)
	inB, errB := writeUntilError(t, targetB+"/data")
	t.Logf("%s in a, then %v; %s in b, then %v; %s", inA, errA, inB, errB, time.Since(began))
	require.Less(t, inB, p.Size-inA)
	require.True(t, errB == nil || isNoSpace(errB), "%v", errB)

	full, err := m.lvm.ThinPool(m.ctx(), group, testPool)
	require.NoError(t, err)
	t.Logf("the pool: %+v", full)
	require.ErrorIs(t, m.tryMount(m.volume("c", 64*volume.MiB), m.target("c")), lvm.ErrNoSpace, "nothing new is made in it")

	// The pool grows while its volumes exist, and failed writers continue; then once more.
	for _, file := range []string{"/second", "/third"} {
		began = time.Now()
		m.shell("lvextend -qq --size +128M %s/%s", group, testPool)
		grown := time.Since(began)
		in, err := writeUntilError(t, targetB+file)
		t.Logf("extended in %s; %s in b, then %v", grown, in, err)
		require.Greater(t, in, 16*volume.MiB)
		require.True(t, isNoSpace(err), "%v", err)
		requireWritten(t, targetB+file, in)
	}
	requireWritten(t, targetB+"/data", inB)
	began = time.Now()
	m.unmount(targetB)
	require.Less(t, time.Since(began), 5*time.Minute)

	// The removal of a frees room.
	m.unmount(targetA)
	ref := Ref{Group: group, Name: a.Name, Cluster: cluster}
	require.NoError(t, m.Release(m.ctx(), ref, volume.Unreferenced, volume.Disposal{}))
	require.NoError(t, m.Remove(m.ctx(), ref))
	targetB = m.mount(b, "b")
	requireWritten(t, targetB+"/data", inB)
	require.NoError(t, os.WriteFile(targetB+"/more", make([]byte, 64*volume.MiB), 0o600))
	m.shell("sync -f %s", targetB)
}

// With ext4, too, writers get an error immediately, nothing hangs, and synced data is still there when the pool has room.
// If the kernel has noted an error, because the journal could not be written, the volume is refused until a person has
// checked it.
func TestThinPoolFilledByWritersToExt4(t *testing.T) {
	m, p := thinMachine(t, 768*volume.MiB)
	a, b := m.ext4Volume("a", 600*volume.MiB), m.ext4Volume("b", 600*volume.MiB)
	targetA, targetB := m.mount(a, "a"), m.mount(b, "b")
	began := time.Now()
	var inA, inB volume.Bytes
	var errA, errB error
	asTenant(t, func() {
		inA, errA = writeUntilError(t, targetA+"/data")
		inB, errB = writeUntilError(t, targetB+"/data")
	})
	t.Logf("%s in a, then %v; %s in b, then %v; %s", inA, errA, inB, errB, time.Since(began))
	require.ErrorIs(t, errA, syscall.EDQUOT, "at the end of its quota")
	require.Less(t, inB, p.Size-inA)
	require.True(t, isNoSpace(errB) || errors.Is(errB, unix.EROFS), "%v", errB)
	m.unmount(targetB)
	m.unmount(targetA)
	require.Less(t, time.Since(began), 10*time.Minute)

	m.shell("lvextend -qq --size +512M %s/%s", group, testPool)
	for _, s := range []volume.Spec{a, b} {
		err := m.tryMount(s, m.target(string(s.Name)))
		t.Logf("the mount of %s, after the pool was extended: %v", s.Name, err)
		if err == nil {
			continue
		}
		require.ErrorIs(t, err, ErrDamaged)
		require.ErrorContains(t, err, "e2fsck -fn")
		m.shell("e2fsck -fy %s || test $? -le 2", devicePath(s))
		m.mount(s, string(s.Name))
	}
	requireWritten(t, targetA+"/data", inA)
	requireWritten(t, targetB+"/data", inB)
	asTenant(t, func() { require.NoError(t, os.WriteFile(targetB+"/more", make([]byte, volume.MiB), 0o600)) })
	m.shell("sync -f %s", targetB)
}

func isNoSpace(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EIO)
}

// requireWritten reads what writeUntilError has synced, which may not fit into the memory.
func requireWritten(t *testing.T, file string, size volume.Bytes) {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	want, got := []byte(strings.Repeat("flexlvm\n", int(volume.MiB)/8)), make([]byte, volume.MiB)
	for at := volume.Bytes(0); at < size; at += volume.MiB {
		n := min(volume.MiB, size-at)
		_, err := io.ReadFull(f, got[:n])
		require.NoError(t, err)
		require.True(t, bytes.Equal(want[:n], got[:n]), "at byte %d", at)
	}
}

// A pool that is not configured correctly gets no new volumes; its existing volumes keep working.
func TestUnfitThinPool(t *testing.T) {
	m, _ := thinMachine(t, 2*volume.GiB)
	old := m.volume("old", 64*volume.MiB)
	m.unmount(m.mount(old, "a"))
	path := fmt.Sprintf("%s/%s", group, testPool)
	for change, c := range map[string]struct{ back, says string }{
		"--errorwhenfull n":          {"--errorwhenfull y", "lvchange --errorwhenfull y " + path},
		"--deltag flexlvm.kind=pool": {"--addtag flexlvm.kind=pool", "tag it with `lvchange --addtag flexlvm --addtag flexlvm.kind=pool " + path},
		"--zero n":                   {"--zero y", "lvchange --zero y " + path},
	} {
		m.shell("lvchange --yes %s %s", change, path)
		s := m.volume("new", 64*volume.MiB)
		require.ErrorContains(t, m.tryMount(s, m.target("n")), c.says, change)
		require.Equal(t, []string{"old"}, lvs())
		m.unmount(m.mount(old, "a"))
		m.shell("lvchange --yes %s %s", c.back, path)
	}
	m.mount(m.volume("new", 64*volume.MiB), "n")

	s := m.volume("other", 64*volume.MiB)
	s.ThinPool = "nowhere"
	require.ErrorIs(t, m.tryMount(s, m.target("o")), lvm.ErrNoPool)
}

// The power fails after LVM has recorded a new volume and before its pool has created it: the message in the
// metadata shows that, and the pool's transaction ID.
func TestThinVolumeThatItsPoolWasNotToldOf(t *testing.T) {
	m, _ := thinMachine(t, 2*volume.GiB)
	m.unmount(m.mount(m.volume("other", 64*volume.MiB), "other"))
	s := m.volume("data", 64*volume.MiB)
	tags := volume.Tags{
		State: volume.Creating, FS: "11111111-2222-4333-8444-555555555555", Size: s.Size,
		Namespace: s.Namespace, Cluster: s.Cluster, Kind: s.Kind,
	}
	require.NoError(t, m.lvm.Create(m.ctx(), lvm.LogicalVolume{
		Group: group, Name: s.Name, Size: volume.XFSDeviceSize(s.Size, 0), Shape: m.shape, Tags: tags.Strings(),
	}))
	m.shell(`set -e
		vgcfgbackup -qq -f %[2]s/after %[1]s
		id=$(sed -n '/^\t\tdata {/,/^\t\t}/s/.*device_id = //p' %[2]s/after)
		lvchange -an %[1]s/data
		pool=$(dmsetup ls | awk '/tpool/ { print $1 }')
		now=$(dmsetup status $pool | cut -d' ' -f4)
		dmsetup message $pool 0 "delete $id"
		dmsetup message $pool 0 "set_transaction_id $now $((now-1))"
		vgchange -qq -an %[1]s
		sed "s/^\t*transaction_id = $now\$/&\nmessage1 {\ncreate = \"data\"\n}/" %[2]s/after >%[2]s/before
		vgcfgrestore -qq --force -f %[2]s/before %[1]s
		! lvchange -ay %[1]s/data 2>/dev/null`, group, t.TempDir())

	target := m.mount(s, "a")
	require.Equal(t, []string{"data", "other"}, lvs())
	require.NoError(t, os.WriteFile(target+"/file", []byte("x"), 0o600))
	m.unmount(target)
	m.unmount(m.mount(m.volume("other", 64*volume.MiB), "other"))
}

// The power fails after the pool has created a copy and before it has counted the transaction, while LVM's
// metadata still has the message. Without help, no volume could be created in the pool any more, by any
// program.
func TestCopyThatItsPoolHasNotCounted(t *testing.T) {
	for name, resolve := range map[string]func(t *testing.T, m *machine, c volume.Spec){
		"made again": func(t *testing.T, m *machine, c volume.Spec) {
			require.FileExists(t, m.mount(c, "c")+"/file")
			m.unmount(m.target("c"))
		},
		"removed": func(t *testing.T, m *machine, c volume.Spec) {
			require.NoError(t, m.Release(m.ctx(), refOf(c), volume.Unreferenced, volume.Disposal{}))
			require.NoError(t, m.Remove(m.ctx(), refOf(c)))
			require.Equal(t, []string{"data"}, lvs())
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, _ := thinMachine(t, 2*volume.GiB)
			s, c := m.volume("data", 64*volume.MiB), m.volume("copy", 64*volume.MiB)
			c.CloneOf = s.Name
			target := m.mount(s, "a")
			require.NoError(t, os.WriteFile(target+"/file", []byte("x"), 0o600))
			m.unmount(target)
			_, err := m.snapshot(m.ctx(), c, luks.Key{})
			require.NoError(t, err)
			m.shell(`vgcfgbackup -qq -f %[2]s/after %[1]s
				lvchange -qq -an %[1]s/copy
				pool=$(dmsetup ls | awk '/tpool/ { print $1 }')
				now=$(dmsetup status $pool | cut -d' ' -f4)
				dmsetup message $pool 0 "set_transaction_id $now $((now-1))"
				vgchange -qq -an %[1]s
				sed "s/^\t*transaction_id = $now\$/&\nmessage1 {\ncreate = \"copy\"\n}/" %[2]s/after >%[2]s/before
				vgcfgrestore -qq --force -f %[2]s/before %[1]s
				vgchange -qq -ay %[1]s
				! lvcreate -qq --yes --thin --virtualsize 300m --name other %[1]s/%[3]s 2>/dev/null`, group, t.TempDir(), testPool)
			resolve(t, m, c)
			m.unmount(m.mount(m.volume("new", 64*volume.MiB), "n"))
		})
	}
}
