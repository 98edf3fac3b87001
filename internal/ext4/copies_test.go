package ext4

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// sparse is a sparse device with superblocks at some offsets.
type sparse struct {
	at     map[volume.Bytes][]byte
	synced bool
	failed error
}

func (s *sparse) ReadAt(b []byte, at int64) (int, error) {
	clear(b)
	copy(b, s.at[volume.Bytes(at)])
	return len(b), nil
}

func (s *sparse) WriteAt(b []byte, at int64) (int, error) {
	s.at[volume.Bytes(at)], s.synced = bytes.Clone(b), false
	return len(b), nil
}

func (s *sparse) Sync() error {
	s.synced = true
	return s.failed
}

const group = 128 * volume.MiB

func TestCopiesAreMarkedAndFound(t *testing.T) {
	unmarked := written(t, "copy")
	size := 500 * volume.MiB
	d := &sparse{at: map[volume.Bytes][]byte{group: unmarked, 3 * group: unmarked}}
	_, err := FindCopy(d, size, uuid)
	require.ErrorIs(t, err, ErrNoFilesystem, "what mke2fs writes says nothing")

	changed, err := MarkCopies(d, size, uuid)
	require.NoError(t, err)
	require.True(t, changed)
	require.True(t, d.synced, "before anybody mounts it")
	at, err := FindCopy(d, size, uuid)
	require.NoError(t, err)
	require.Equal(t, group, at)
	for n, b := range d.at {
		sb, err := parse(b)
		require.NoError(t, err)
		require.Equal(t, Superblock{UUID: uuid, Size: 300 * volume.MiB, Mounts: 1, ProjectQuota: true}, sb, n)
		differing := 0
		for i := range b {
			if b[i] != unmarked[i] && (i < offChecksum) {
				differing++
			}
		}
		require.Equal(t, 1, differing, "nothing else has changed")
	}
	changed, err = MarkCopies(d, size, uuid)
	require.NoError(t, err)
	require.False(t, changed)

	// One copy is enough, wherever it is.
	delete(d.at, group)
	at, err = FindCopy(d, size, uuid)
	require.NoError(t, err)
	require.Equal(t, 3*group, at)
	_, err = FindCopy(d, 3*group, uuid)
	require.ErrorIs(t, err, ErrNoFilesystem, "beyond the end")
	_, err = FindCopy(d, size, "11111111-1111-4111-8111-111111111111")
	require.ErrorIs(t, err, ErrNoFilesystem, "of an earlier volume")

	marked := d.at[3*group]
	_, err = FindCopy(&sparse{at: map[volume.Bytes][]byte{primaryAt: unmarked}}, size, uuid)
	require.ErrorIs(t, err, ErrNoFilesystem, "never mounted")
	at, err = FindCopy(&sparse{at: map[volume.Bytes][]byte{primaryAt: marked, group: unmarked}}, size, uuid)
	require.NoError(t, err)
	require.EqualValues(t, primaryAt, at, "it counts mounts")
}

func TestCopiesThatCannotBeMarked(t *testing.T) {
	_, err := MarkCopies(&sparse{}, 500*volume.MiB, uuid)
	require.ErrorContains(t, err, "there are none of the file system "+uuid)
	d := &sparse{at: map[volume.Bytes][]byte{group: written(t, "copy")}, failed: errors.New("input/output error")}
	_, err = MarkCopies(d, 300*volume.MiB, uuid)
	require.ErrorIs(t, err, d.failed)
	_, err = MarkCopies(d, 300*volume.MiB, "11111111-1111-4111-8111-111111111111")
	require.Error(t, err)
	_, err = FindCopy(broken{}, 300*volume.MiB, uuid)
	require.Error(t, err)
	require.NotErrorIs(t, err, ErrNoFilesystem, "what cannot be read says nothing")
}
