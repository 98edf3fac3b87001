package ext4

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

const uuid = "0d9ee5ba-5b9b-4c8e-8d7e-0f4b8f0c6a11"

// written returns a superblock that mke2fs 1.47 wrote, or a copy of it.
func written(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	require.NoError(t, err)
	return b
}

// seal writes the right checksum into a superblock.
func seal(b []byte) []byte {
	binary.LittleEndian.PutUint32(b[offChecksum:], checksum(b))
	return b
}

func device(superblock []byte) *bytes.Reader {
	return bytes.NewReader(append(make([]byte, primaryAt), superblock...))
}

func TestReadSuperblock(t *testing.T) {
	whole := written(t, "superblock")
	sb, err := ReadSuperblock(device(whole))
	require.NoError(t, err)
	require.Equal(t, Superblock{UUID: uuid, Size: 300 * volume.MiB, ProjectQuota: true}, sb)

	used := bytes.Clone(whole)
	used[offMounts], used[offState] = 7, used[offState]|stateErrors
	sb, err = ReadSuperblock(device(seal(used)))
	require.NoError(t, err)
	require.Equal(t, Superblock{UUID: uuid, Size: 300 * volume.MiB, Errors: true, Mounts: 7, ProjectQuota: true}, sb)

	for _, feature := range []uint32{quotaFiles, projects} {
		without := bytes.Clone(whole)
		binary.LittleEndian.PutUint32(without[offReadOnly:], binary.LittleEndian.Uint32(without[offReadOnly:])&^feature)
		sb, err = ReadSuperblock(device(seal(without)))
		require.NoError(t, err)
		require.False(t, sb.ProjectQuota)
	}

	for at, value := range map[int]uint32{offReserved: 1, offReservedHigh: 1, offGroupInodes: 32768} {
		lavish := bytes.Clone(whole)
		binary.LittleEndian.PutUint32(lavish[at:], value)
		sb, err = ReadSuperblock(device(seal(lavish)))
		require.NoError(t, err)
		require.True(t, sb.HighOverhead, "at byte %#x", at)
	}

	for name, spoil := range map[string]func(b []byte) []byte{
		"blank":             func([]byte) []byte { return make([]byte, superblockSize) },
		"XFS":               func([]byte) []byte { return append([]byte("XFSB"), make([]byte, superblockSize)...) },
		"without checksums": func(b []byte) []byte { b[offReadOnly+1] &^= 4; return seal(b) },
		"another checksum":  func(b []byte) []byte { b[offChecksumType] = 2; return seal(b) },
		"blocks of 1024":    func(b []byte) []byte { b[offLogBlockSize] = 0; return seal(b) },
		"first sector lost": func(b []byte) []byte { clear(b[:512]); return b },
	} {
		_, err := ReadSuperblock(device(spoil(bytes.Clone(whole))))
		require.ErrorIs(t, err, ErrNoFilesystem, name)
		require.NotErrorIs(t, err, ErrChecksum, name)
	}
	for name, at := range map[string]int{"a bit flipped": offUUID, "the second sector": 700} {
		torn := bytes.Clone(whole)
		torn[at] ^= 1
		_, err = ReadSuperblock(device(torn))
		require.ErrorIs(t, err, ErrChecksum, name)
		require.ErrorIs(t, err, ErrNoFilesystem, name)
	}
}

// A read error is not ErrNoFilesystem: the device may hold a file system.
func TestUnreadableIsNotBlank(t *testing.T) {
	_, err := ReadSuperblock(broken{})
	require.Error(t, err)
	require.NotErrorIs(t, err, ErrNoFilesystem)
	_, err = ReadSuperblock(device(nil))
	require.NotErrorIs(t, err, ErrNoFilesystem, "a device shorter than a superblock")
}

type broken struct{}

func (broken) ReadAt([]byte, int64) (int, error) { return 0, errors.New("input/output error") }

func FuzzSuperblock(f *testing.F) {
	f.Add(written(f, "superblock"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if sb, err := ReadSuperblock(device(b)); err == nil {
			require.Len(t, sb.UUID, 36)
		}
	})
}
