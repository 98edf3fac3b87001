// Command etcd is etcd with small log files: the default ones, of 64 MB each, do not fit on the tests' volumes.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"go.etcd.io/etcd/server/v3/storage/wal"
)

func main() {
	wal.SegmentSizeBytes = 1 << 20
	etcdmain.Main(os.Args)
}
