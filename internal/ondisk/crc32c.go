// Package ondisk has what the formats of file systems have in common: UUIDs and the
// checksums of superblocks.
package ondisk

// CRC32C continues a CRC-32C bit by bit. hash/crc32 is made for long inputs: at
// its first use it works through 1.5 MiB to prepare its tables, which is longer
// than anything else a mount does here, and a flexlvm process needs one sector.
func CRC32C(crc uint32, p []byte) uint32 {
	const castagnoli = 0x82f63b78 // reversed, as hash/crc32 has it
	for _, b := range p {
		crc ^= uint32(b)
		for range 8 {
			crc = crc>>1 ^ castagnoli&-(crc&1)
		}
	}
	return crc
}
