package luks

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// ErrNoHeader: the content is not the header of a LUKS2 container. This does not mean that the
// device is blank: only the volume's state shows whether a header is missing.
var ErrNoHeader = errors.New("no LUKS2 header")

// A Header holds what identifies a container.
type Header struct {
	UUID string
}

// Offsets in the binary header, all big-endian (LUKS2 On-Disk Format Specification, 2.1).
const (
	offMagic   = 0
	offVersion = 6
	offSize    = 8
	offUUID    = 168
	lenUUID    = 40
	offOffset  = 256 // of this header from the device's beginning
	lenHeader  = 512

	version2     = 2
	magicFirst   = "LUKS\xba\xbe"
	magicSecond  = "SKUL\xba\xbe"
	secondHeader = metadataSize // where it begins
)

// ReadHeader reads the header, or its second copy if the first is not a header: cryptsetup repairs
// the first when it opens the container. It returns ErrNoHeader if neither is a header, and another
// error if reading fails. It leaves the checksums to cryptsetup.
func ReadHeader(r io.ReaderAt) (Header, error) {
	first, err := readCopy(r, 0, magicFirst)
	if err == nil || !errors.Is(err, ErrNoHeader) {
		return first, err
	}
	return readCopy(r, secondHeader, magicSecond)
}

func readCopy(r io.ReaderAt, at int64, magic string) (Header, error) {
	b := make([]byte, lenHeader)
	if _, err := r.ReadAt(b, at); err != nil {
		return Header{}, fmt.Errorf("read LUKS2 header at byte %d: %w", at, err)
	}
	if string(b[offMagic:offMagic+len(magic)]) != magic ||
		binary.BigEndian.Uint16(b[offVersion:]) != version2 ||
		binary.BigEndian.Uint64(b[offSize:]) != metadataSize ||
		binary.BigEndian.Uint64(b[offOffset:]) != uint64(at) {
		return Header{}, ErrNoHeader
	}
	id, _, terminated := bytes.Cut(b[offUUID:offUUID+lenUUID], []byte{0})
	if !terminated || len(id) == 0 {
		return Header{}, fmt.Errorf("%w: it has no UUID", ErrNoHeader)
	}
	return Header{UUID: strings.ToLower(string(id))}, nil
}
