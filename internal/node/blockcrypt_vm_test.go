//go:build vm

package node

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/luks"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// The record of an encrypted raw block volume was not written when the volume became ready, so it still says creating.
// Its container holds what a pod has written, and is not opened while an LVM command runs.
func TestEncryptedBlockWithAnOldRecordIsOpenedAlone(t *testing.T) {
	m := newMachine(t)
	s := m.rawVolume("data", rawSize)
	s.Encrypted = true
	key, err := luks.NewKey([]byte("a key of more than thirty-two bytes"))
	require.NoError(t, err)
	target, data := m.file("a"), pattern("of the pod ", rawSize)
	mount := func() { require.NoError(t, m.Mount(m.ctx(), s, MountRequest{Target: target, Key: key})) }
	mount()
	writeDevice(t, target, 0, data)
	m.unmount(target)
	require.NoError(t, m.CloseUnused(m.ctx()))
	rec, err := m.records.read(s.Group, s.Name)
	require.NoError(t, err)
	require.Equal(t, volume.Ready, rec.State)
	rec.State = volume.Creating
	require.NoError(t, m.records.write(s.Group, s.Name, rec))

	require.NoError(t, m.lvm.Alone(m.ctx(), func() error {
		_, err := m.openFromRecord(m.ctx(), s, key)
		require.ErrorIs(t, err, errAskLVM)
		require.Empty(t, shellOut("ls /dev/mapper | grep flexlvm-block"))
		return nil
	}))
	mount()
	requireContent(t, target, rawSize, data)
	rec, err = m.records.read(s.Group, s.Name)
	require.NoError(t, err)
	require.Equal(t, volume.Ready, rec.State)
	m.unmount(target)
}

// The header is gone after the wipe, although the disk cannot discard.
func TestDiscardErasesTheHeader(t *testing.T) { linearAndThin(t, testDiscardErasesTheHeader) }

func testDiscardErasesTheHeader(t *testing.T, m *machine) {
	s := m.rawVolume("data", rawSize)
	s.Encrypted = true
	key, err := luks.NewKey([]byte("a key of more than thirty-two bytes"))
	require.NoError(t, err)
	target := m.file("a")
	require.NoError(t, m.Mount(m.ctx(), s, MountRequest{Target: target, Key: key}))
	m.unmount(target)
	require.NoError(t, m.CloseUnused(m.ctx()))
	d, err := lvm.FindDevice(s.Group, s.Name)
	require.NoError(t, err)
	_, err = readHeader(d.Path)
	require.NoError(t, err)
	m.shell("echo 0 >/sys/dev/block/%d:%d/queue/discard_max_bytes; ! blkdiscard --length 4096 %s", unix.Major(d.Number), unix.Minor(d.Number), d.Path)

	lv, err := m.lvm.Volume(m.ctx(), s.Group, s.Name)
	require.NoError(t, err)
	tags := tagsOf(t, s.Name)
	tags.Wipe = volume.WipeDiscard
	require.NoError(t, m.wipe(m.ctx(), lv, tags))
	m.shell("cmp -n %d %s /dev/zero", int64(volume.LUKSHeader), d.Path)
	_, err = readHeader(d.Path)
	require.ErrorIs(t, err, luks.ErrNoHeader)
}
