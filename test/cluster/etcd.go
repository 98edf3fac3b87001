package cluster

import (
	"context"
	"io"
	"path/filepath"

	"github.com/flexlvm/flexlvm/test/built"
	"github.com/flexlvm/flexlvm/test/vm"
)

// EtcdImage has the database of the tests: etcd, as /program, beside busybox.
const EtcdImage = "flexlvm.test/etcd:1"

// BuildEtcdImage returns an archive of EtcdImage, fit for LoadImage, building it at the first call:
// half a minute on two cores where the cluster's own etcd was built. Its log consists of small
// files; see the program.
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
