package cluster

import (
	"context"
	"io"
	"path/filepath"

	"github.com/flexlvm/flexlvm/test/built"
	"github.com/flexlvm/flexlvm/test/vm"
)

// EtcdImage is the tests' database: etcd, as /program, and busybox.
const EtcdImage = "flexlvm.test/etcd:1"

// BuildEtcdImage returns an archive of EtcdImage for LoadImage. The first call builds it, which takes half a minute
// on two cores once the cluster's own etcd is built. Its log consists of small files; see the program.
func BuildEtcdImage(ctx context.Context, log io.Writer) (string, error) {
	root, err := vm.SourceDir()
	if err != nil {
		return "", err
	}
	program, err := built.Module(ctx, filepath.Join(root, "test/cluster/kubernetes"), "etcd", "./etcd", log)
	if err != nil {
		return "", err
	}
	return ProgramImage(ctx, EtcdImage, program)
}
