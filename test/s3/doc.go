// Package s3 runs a real S3 server on this machine, for tests and for the bench,
// and what makes it hard to live with: a proxy before it that injects faults, and
// the dialect of Pachyderm's gateway.
//
// The server is versitygw on a folder of this machine. It has signatures, ranges,
// conditional reads, versions and checksums with CRC64NVME; it is built once, in a
// module of its own (server/), and kept in the cache.
package s3
