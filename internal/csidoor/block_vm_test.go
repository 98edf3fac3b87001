//go:build vm

package csidoor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

const rawSize = 5*mib + volume.Block

func newRawBed(t *testing.T) bed {
	t.Helper()
	b := newBed(t)
	b.Spec.FSType, b.Spec.Size = volume.Raw, rawSize
	return b
}

// requireDevice checks the size of the device.
func (b bed) requireDevice(size volume.Bytes) {
	b.t.Helper()
	require.Equal(b.t, fmt.Sprint(int64(size)), b.sh("blockdev --getsize64 "+b.Target))
}

func (b bed) fill() string {
	b.t.Helper()
	b.sh(fmt.Sprintf("head -c %d /dev/urandom | dd of=%s bs=1M conv=notrunc,fsync 2>/dev/null", int64(rawSize), b.Target))
	return b.sum()
}

func (b bed) sum() string {
	b.t.Helper()
	return b.sh(fmt.Sprintf("head -c %d %s | md5sum", int64(rawSize), b.Target))
}

func TestBlockPublishKilledAfterEveryStep(t *testing.T) {
	b := newRawBed(t)
	c := b.verb("mount")
	for die := 1; ; die++ {
		require.Less(t, die, 30)
		b.clear()
		b.sh("lvcreate --yes -q -Wn -Zn -l3 -n dirty flexlvm-test; yes | head -c 12M | dd of=/dev/flexlvm-test/dirty bs=1M conv=fsync status=none; lvremove --yes -q flexlvm-test/dirty")
		c.Die = die
		if !c.run(t) {
			require.Equal(t, 10, die, "after each of lvcreate, zero, tag zeroed, mkfs; make mapping; write record, tag ready, record ready; move mount")
			break
		}
		c.Die = 0
		require.False(t, c.run(t), "the same call again, after death %d", die)
		require.Equal(t, "data", b.lvs(), "one volume after death %d", die)
		b.requireDevice(rawSize)
		b.sh(fmt.Sprintf("cmp -n %d %s /dev/zero", int64(rawSize), b.Target))
	}
}

// An unpublish that is killed after any step and repeated removes the target and keeps the data.
func TestBlockUnpublishKilledAfterEveryStep(t *testing.T) {
	b := newRawBed(t)
	require.False(t, b.verb("mount").run(t))
	sum, grow, end := b.fill(), b.verb("expand"), b.verb("unmount")
	grow.Size = rawSize + 8*mib
	require.False(t, grow.run(t))
	b.requireDevice(grow.Size)
	require.Equal(t, sum, b.sum())
	for die, died := 1, true; died; die++ {
		end.Die = die
		died = end.run(t)
		end.Die = 0
		require.False(t, end.run(t), "after death %d", die)
		_, err := os.Lstat(b.Target)
		require.ErrorIs(t, err, os.ErrNotExist)
		require.False(t, b.verb("mount").run(t))
		require.Equal(t, sum, b.sum(), "after death %d", die)
	}
}

// The last pod that got the device has ended, and kubelet requests growth at its path.
func TestBlockGrowsAfterItsLastPodHasEnded(t *testing.T) {
	b := newRawBed(t)
	require.False(t, b.verb("mount").run(t))
	sum, last := b.fill(), b.verb("mount")
	last.Target, last.Size = filepath.Join(filepath.Dir(b.Target), "b"), rawSize+8*mib
	require.False(t, last.run(t))
	last.Verb = "unmount"
	require.False(t, last.run(t))
	last.Verb = "expand"
	require.False(t, last.run(t))
	b.requireDevice(last.Size)
	require.Equal(t, sum, b.sum())
	require.False(t, b.verb("unmount").run(t))
	require.Contains(t, last.fails(t), "NotFound", "no pod has it")
}
