package luks

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/luks/lukstest"
)

func TestReadHeader(t *testing.T) {
	h, err := ReadHeader(bytes.NewReader(lukstest.Header()))
	require.NoError(t, err)
	require.Equal(t, id, h.UUID)

	spoilt := func(at int, with string) []byte {
		b := lukstest.Header()
		copy(b[at:], with)
		return b
	}
	for name, b := range map[string][]byte{
		"no magic":        spoilt(0, "XFSB"),
		"overwritten":     spoilt(0, string(make([]byte, 4096))),
		"another version": spoilt(6, "\x00\x01"),
		"another offset":  spoilt(offOffset, "\xff"),
	} {
		h, err := ReadHeader(bytes.NewReader(b))
		require.NoError(t, err, "the second copy counts: %s", name)
		require.Equal(t, id, h.UUID)
		copy(b[secondHeader:], "XFSB")
		_, err = ReadHeader(bytes.NewReader(b))
		require.ErrorIs(t, err, ErrNoHeader, name)
	}
	for name, b := range map[string][]byte{
		"blank":   make([]byte, 1<<20),
		"no UUID": append(make([]byte, secondHeader), spoilt(secondHeader+offUUID, string(make([]byte, lenUUID)))[secondHeader:]...),
	} {
		_, err := ReadHeader(bytes.NewReader(b))
		require.ErrorIs(t, err, ErrNoHeader, name)
	}
}

// A read error is not ErrNoHeader: the device may hold a header.
func TestUnreadableIsNotBlank(t *testing.T) {
	_, err := ReadHeader(broken{})
	require.Error(t, err)
	require.NotErrorIs(t, err, ErrNoHeader)
	_, err = ReadHeader(bytes.NewReader(make([]byte, lenHeader)))
	require.ErrorIs(t, err, io.EOF, "it ends before the second copy")
	require.NotErrorIs(t, err, ErrNoHeader)
}

type broken struct{}

func (broken) ReadAt([]byte, int64) (int, error) { return 0, errors.New("input/output error") }

func FuzzHeader(f *testing.F) {
	f.Add(lukstest.Header())
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := ReadHeader(bytes.NewReader(b)); err == nil {
			require.NotEmpty(t, h.UUID)
			require.Less(t, len(h.UUID), lenUUID)
		}
	})
}
