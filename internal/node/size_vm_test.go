//go:build vm

package node

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// The promise of flexlvm: df shows the requested size with nothing used, and writes stop at exactly that
// byte.
func TestSizeIsExact(t *testing.T) {
	linearAndThin(t, testSizeIsExact)
}

func testSizeIsExact(t *testing.T, m *machine) {
	sizes := []volume.Bytes{volume.MiB, 64 * volume.MiB, volume.GiB}
	if m.shape.Layout == volume.Linear {
		sizes = append(sizes, 300*volume.MiB, 2560*volume.MiB)
	}
	for _, size := range sizes {
		t.Run(size.String(), func(t *testing.T) {
			m := m.in(t)
			s := m.volume("exact", size)
			target := m.mount(s, "a")
			got, used, free := df(t, target)
			require.Equal(t, size, got)
			require.Zero(t, used)
			require.Equal(t, size, free)
			filled := fill
			if size > volume.GiB && !inFull() { // the result is the same as with a GiB, and writing takes long
				filled = allocate
			}
			require.Equal(t, size, filled(t, target+"/data"))

			// After a remount, the data and the limit are still the same.
			m.unmount(target)
			target = m.mount(s, "b")
			st, err := os.Stat(target + "/data")
			require.NoError(t, err)
			require.EqualValues(t, size, st.Size())
			require.ErrorIs(t, os.WriteFile(target+"/more", []byte("x"), 0o600), syscall.ENOSPC)
		})
	}
}

// A size that is not a multiple of a block is rounded up to whole blocks.
func TestSizeThatIsNotWholeBlocks(t *testing.T) { linearAndThin(t, testSizeThatIsNotWholeBlocks) }

func testSizeThatIsNotWholeBlocks(t *testing.T, m *machine) {
	s := m.volume("odd", 100*volume.MiB+1)
	target := m.mount(s, "a")
	got, _, _ := df(t, target)
	require.Equal(t, 100*volume.MiB+volume.Block, got)
	require.Equal(t, s.Size, tagsOf(t, s.Name).Size)
}

// Files of 32 KiB are the smallest for which the device has enough room for inodes.
func TestManySmallFiles(t *testing.T) {
	m := newMachine(t)
	s := m.volume("small", 256*volume.MiB)
	target := m.mount(s, "a")
	const each = 32 * volume.KiB
	content := bytes.Repeat([]byte("x"), int(each))
	var files volume.Bytes
	for i := volume.Bytes(0); i < s.Size/each; i++ {
		if i%1000 == 0 {
			require.NoError(t, os.Mkdir(fmt.Sprintf("%s/%d", target, i/1000), 0o755))
		}
		err := os.WriteFile(fmt.Sprintf("%s/%d/%d", target, i/1000, i), content, 0o600)
		if err != nil {
			require.ErrorIs(t, err, syscall.ENOSPC)
			break
		}
		files++
	}
	// Directories are data too, and creating a file reserves about 40 blocks more than it needs in the end
	// (XFS_CREATE_SPACE_RES), which accounts for the difference.
	require.Less(t, s.Size-files*each, 2*volume.MiB)
	_, _, free := df(t, target)
	require.Less(t, free, volume.MiB)
	f, err := os.OpenFile(target+"/0/0", os.O_WRONLY|os.O_APPEND, 0)
	require.NoError(t, err)
	var more volume.Bytes
	for err == nil {
		var n int
		n, err = f.Write(make([]byte, 512))
		more += volume.Bytes(n)
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NoError(t, f.Close())
	require.Equal(t, free, more, "a file that exists can have the rest, to the byte")
}

func TestInodeLimit(t *testing.T) {
	m := newMachine(t)
	s := m.volume("inodes", 64*volume.MiB)
	s.Inodes = 100
	target := m.mount(s, "a")
	made := 0
	for ; made < 200; made++ {
		if err := os.WriteFile(fmt.Sprintf("%s/%d", target, made), nil, 0o600); err != nil {
			require.ErrorIs(t, err, syscall.ENOSPC)
			break
		}
	}
	require.Equal(t, 99, made, "the root directory is the hundredth inode")
}

func TestMillionInodesFit(t *testing.T) {
	m := newMachine(t)
	s := m.volume("million", 64*volume.MiB)
	s.Inodes = 1 << 20
	target := m.mount(s, "a")
	got, used, _ := df(t, target)
	require.Equal(t, s.Size, got)
	require.Zero(t, used)
	require.Equal(t, "1048576", m.shell("df --output=itotal %s | tail -1 | tr -d ' '", target))
}

func TestExpand(t *testing.T) { eachLayout(t, testExpand) }

func testExpand(t *testing.T, m *machine) {
	s := m.volume("grow", 64*volume.MiB)
	target := m.mount(s, "a")
	require.NoError(t, os.WriteFile(target+"/keep", []byte("kept"), 0o600))

	// Mounted, beyond the capacity of the first device.
	require.Zero(t, WokenAt(m.stateDir))
	require.NoError(t, m.Expand(m.ctx(), s, volume.GiB))
	require.NotZero(t, WokenAt(m.stateDir), "the node daemon charges it soon")
	got, _, _ := df(t, target)
	require.Equal(t, volume.GiB, got)
	require.Equal(t, volume.GiB, tagsOf(t, s.Name).Size)
	require.NoError(t, m.Expand(m.ctx(), s, volume.GiB), "again is success")
	require.Equal(t, volume.GiB-volume.Block, allocate(t, target+"/data"))

	// Not mounted.
	require.NoError(t, os.Remove(target+"/data"))
	m.unmount(target)
	require.NoError(t, m.Expand(m.ctx(), s, volume.GiB+volume.MiB))
	target = m.mount(s, "b")
	got, _, _ = df(t, target)
	require.Equal(t, volume.GiB+volume.MiB, got)
	require.Equal(t, volume.GiB+volume.MiB-volume.Block, allocate(t, target+"/data"))
	b, err := os.ReadFile(target + "/keep")
	require.NoError(t, err)
	require.Equal(t, "kept", string(b))

	require.NoError(t, m.Expand(m.ctx(), s, volume.GiB), "it holds that much")
	got, _, _ = df(t, target)
	require.Equal(t, volume.GiB+volume.MiB, got, "and never shrinks")
}

func TestExpandIntoFullGroupChangesNothing(t *testing.T) {
	eachLayout(t, testExpandIntoFullGroupChangesNothing)
}

func testExpandIntoFullGroupChangesNothing(t *testing.T, m *machine) {
	s := m.volume("grow", 64*volume.MiB)
	target := m.mount(s, "a")
	before := tagsOf(t, s.Name)
	err := m.Expand(m.ctx(), s, 10*volume.TiB)
	require.ErrorContains(t, err, "not enough free space: flexlvm-test")
	require.ErrorContains(t, err, "are needed")
	require.Equal(t, before, tagsOf(t, s.Name))
	got, _, _ := df(t, target)
	require.Equal(t, s.Size, got)
}

func TestExpandOfWhatWasNeverMounted(t *testing.T) {
	m := newMachine(t)
	require.ErrorContains(t, m.Expand(m.ctx(), m.volume("never", volume.GiB), 2*volume.GiB), "not found")
	require.Empty(t, lvs())
}

// A tenant who moves files out of the quota gets no more of the group for it when the claim grows, and
// neither growth nor a mount fails because of it.
func TestGrowthGivesWhatWasChargedAndNoMore(t *testing.T) {
	linearAndThin(t, testGrowthGivesWhatWasChargedAndNoMore)
}

func testGrowthGivesWhatWasChargedAndNoMore(t *testing.T, m *machine) {
	s := m.volume("greedy", 64*volume.MiB)
	target := m.mount(s, "a")
	f, err := os.Create(target + "/loot")
	require.NoError(t, err)
	for err == nil {
		m.shell("xfs_io -c 'chproj 0' %s/loot", target)
		_, err = f.Write(make([]byte, volume.MiB))
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NoError(t, f.Close())
	for _, size := range []volume.Bytes{64*volume.MiB + volume.Block, 65 * volume.MiB} {
		require.NoError(t, m.Expand(m.ctx(), s, size))
		s.Size = size
		all, err := m.List(m.ctx())
		require.NoError(t, err)
		require.Equal(t, s.Charge(), all[0].AllocatedWhenFull)
	}
	m.unmount(target)
	m.mount(s, "b")
}

// A record from before a growth, which a crash has brought back, does not undo the growth.
func TestOldRecordDoesNotShrinkTheQuota(t *testing.T) {
	m := newMachine(t)
	s := m.volume("data", 64*volume.MiB)
	target := m.mount(s, "a")
	old, err := m.records.read(s.Group, s.Name)
	require.NoError(t, err)
	require.NoError(t, m.Expand(m.ctx(), s, 100*volume.MiB))
	m.unmount(target)
	require.NoError(t, m.records.write(s.Group, s.Name, old))
	size, _, _ := df(t, m.mount(s, "b"))
	require.Equal(t, 100*volume.MiB, size)
}

// A copy has the inodes that it requested, although its source was created for fewer.
func TestCloneWithMoreInodes(t *testing.T) {
	m, _ := thinMachine(t, 4*volume.GiB)
	s := m.volume("source", 64*volume.MiB)
	m.unmount(m.mount(s, "a"))
	c := m.cloneOf(s, "copy", s.Size)
	c.Inodes = 2_000_000
	require.NoError(t, m.CreateCloneAhead(m.ctx(), c))
	for percent, v := range map[int]volume.Spec{25: s, volume.InodePercent(c.Size, c.Inodes): c} {
		require.Equal(t, fmt.Sprintf("imax_pct = %d", percent), m.shell("xfs_db -r -c 'sb 0' -c 'print imax_pct' %s", devicePath(v)), v.Name)
	}
	requireWhole(t, m, c)
}
