// Package s3 runs a real S3 server on this machine, for tests and benchmarks, and two difficult front ends: a proxy
// that injects faults, and the dialect of Pachyderm's gateway.
//
// The server is versitygw on a folder of this machine. It supports signatures, ranges, conditional reads, versions
// and CRC64NVME checksums. It is built once, in its own module (server/), and kept in the cache.
package s3
