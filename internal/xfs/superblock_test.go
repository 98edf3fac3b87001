package xfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// seal writes the right checksum into a sector.
func seal(sector []byte) []byte {
	binary.LittleEndian.PutUint32(sector[offCRC:], checksum(sector))
	return sector
}

func TestReadSuperblock(t *testing.T) {
	// This superblock was written by mkfs.xfs 6.1 on a real device.
	written, err := os.ReadFile("testdata/superblock")
	require.NoError(t, err)
	sb, err := ReadSuperblock(bytes.NewReader(written))
	require.NoError(t, err)
	require.Equal(t, "0d9ee5ba-5b9b-4c8e-8d7e-0f4b8f0c6a11", sb.UUID)

	for name, spoil := range map[string]func(b []byte) []byte{
		"blank":                func([]byte) []byte { return make([]byte, 4096) },
		"ext4's first sector":  func([]byte) []byte { return append(make([]byte, 1080), 0x53, 0xef) },
		"one bit flipped":      func(b []byte) []byte { b[40] ^= 1; return b },
		"checksum gone":        func(b []byte) []byte { copy(b[offCRC:], "\x00\x00\x00\x00"); return b },
		"mkfs was interrupted": func(b []byte) []byte { b[offInProgress] = 1; return seal(b) },
		"version 4":            func(b []byte) []byte { b[offVersion+1] = b[offVersion+1]&^versionMask | 4; return seal(b) },
		"sector of 0 bytes":    func(b []byte) []byte { b[offSectorSize], b[offSectorSize+1] = 0, 0; return seal(b) },
		"sector of 513 bytes":  func(b []byte) []byte { b[offSectorSize+1] = 1; return seal(b) },
	} {
		_, err := ReadSuperblock(bytes.NewReader(spoil(bytes.Clone(written))))
		require.ErrorIs(t, err, ErrNoFilesystem, name)
	}
}

// A read error is not ErrNoFilesystem: the device may hold a file system.
func TestUnreadableIsNotBlank(t *testing.T) {
	_, err := ReadSuperblock(broken{})
	require.Error(t, err)
	require.NotErrorIs(t, err, ErrNoFilesystem)
	_, err = ReadSuperblock(bytes.NewReader([]byte("XFSB")))
	require.NotErrorIs(t, err, ErrNoFilesystem, "a device shorter than a sector")
}

type broken struct{}

func (broken) ReadAt([]byte, int64) (int, error) { return 0, errors.New("input/output error") }

func FuzzSuperblock(f *testing.F) {
	written, err := os.ReadFile("testdata/superblock")
	require.NoError(f, err)
	f.Add(written)
	f.Fuzz(func(t *testing.T, b []byte) {
		if sb, err := ReadSuperblock(bytes.NewReader(b)); err == nil {
			require.Len(t, sb.UUID, 36)
		}
	})
}
