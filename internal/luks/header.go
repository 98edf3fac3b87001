package luks

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// ErrNoHeader: what was read is not the header of a LUKS2 container. This does not mean that
// the device is blank: only the volume's state shows whether a header is missing.
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
	offSumName = 72 // of the algorithm of the checksum
	lenSumName = 32
	offUUID    = 168
	lenUUID    = 40
	offOffset  = 256 // of this header from the device's beginning
	offSum     = 448 // of all metadataSize bytes, with zeros in its own place
	lenSum     = 64

	version2     = 2
	magicFirst   = "LUKS\xba\xbe"
	magicSecond  = "SKUL\xba\xbe"
	sumName      = "sha256"     // the one that cryptsetup writes
	secondHeader = metadataSize // where it begins
)

// ReadHeader reads the header, or its second copy where the first is none: cryptsetup
// repairs that as it opens the container. It returns ErrNoHeader if neither is one, another
// error if reading fails. A copy with a wrong checksum is none: cryptsetup writes it first
// without, and once more when the rest is there, so that a UUID in it may not last.
func ReadHeader(r io.ReaderAt) (Header, error) {
	first, err := readCopy(r, 0, magicFirst)
	if err == nil || !errors.Is(err, ErrNoHeader) {
		return first, err
	}
	return readCopy(r, secondHeader, magicSecond)
}

func readCopy(r io.ReaderAt, at int64, magic string) (Header, error) {
	b := make([]byte, metadataSize)
	if _, err := r.ReadAt(b, at); err != nil {
		return Header{}, fmt.Errorf("read LUKS2 header at byte %d: %w", at, err)
	}
	if string(b[offMagic:offMagic+len(magic)]) != magic ||
		binary.BigEndian.Uint16(b[offVersion:]) != version2 ||
		binary.BigEndian.Uint64(b[offSize:]) != metadataSize ||
		binary.BigEndian.Uint64(b[offOffset:]) != uint64(at) {
		return Header{}, ErrNoHeader
	}
	if err := checkSum(b); err != nil {
		return Header{}, err
	}
	id, terminated := textIn(b[offUUID : offUUID+lenUUID])
	if !terminated || id == "" {
		return Header{}, fmt.Errorf("%w: it has no UUID", ErrNoHeader)
	}
	return Header{UUID: strings.ToLower(id)}, nil
}

func checkSum(b []byte) error {
	if name, _ := textIn(b[offSumName : offSumName+lenSumName]); name != sumName {
		return fmt.Errorf("%w: its checksum is a %q, and not a %s", ErrNoHeader, name, sumName)
	}
	whole := bytes.Clone(b)
	clear(whole[offSum : offSum+lenSum])
	if sum := sha256.Sum256(whole); !bytes.HasPrefix(b[offSum:], sum[:]) {
		return fmt.Errorf("%w: its checksum is wrong", ErrNoHeader)
	}
	return nil
}

// textIn returns the text in a field that it does not fill.
func textIn(field []byte) (text string, terminated bool) {
	b, _, terminated := bytes.Cut(field, []byte{0})
	return string(b), terminated
}
