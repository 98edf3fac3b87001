// Package ondisk has what file system formats share: UUIDs and superblock checksums.
package ondisk

// CRC32C continues a CRC-32C bit by bit. hash/crc32 is made for long inputs: its first use processes 1.5 MiB to
// prepare its tables, which takes longer than any other step of a mount, and a flexlvm process needs the
// checksum of one sector.
func CRC32C(crc uint32, p []byte) uint32 {
	const castagnoli = 0x82f63b78 // bit-reversed, as in hash/crc32
	for _, b := range p {
		crc ^= uint32(b)
		for range 8 {
			crc = crc>>1 ^ castagnoli&-(crc&1)
		}
	}
	return crc
}
