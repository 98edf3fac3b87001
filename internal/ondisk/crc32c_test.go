package ondisk

import (
	"bytes"
	"hash/crc32"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestChecksumIsTheLibrarys(t *testing.T) {
	for n := range 300 {
		b := bytes.Repeat([]byte{byte(n), 0xa5, byte(n >> 3)}, n)
		require.Equal(t, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)), ^CRC32C(^uint32(0), b))
	}
}
