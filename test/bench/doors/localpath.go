package doors

import (
	"context"
	_ "embed"
	"io"
	"path/filepath"
	"strings"

	"github.com/flexlvm/flexlvm/test/bench/start"
	"github.com/flexlvm/flexlvm/test/built"
	"github.com/flexlvm/flexlvm/test/cluster"
	"github.com/flexlvm/flexlvm/test/vm"
)

const (
	localPathNamespace = "local-path-storage"
	localPathImage     = "flexlvm.test/local-path-provisioner:bench"
)

//go:embed localpath.yaml
var localPathManifest string

// installLocalPath installs local-path-provisioner, whose volumes are directories of the node's root file system
// without size limits.
func installLocalPath(ctx context.Context, b *start.Bed, log io.Writer) error {
	source, err := vm.SourceDir()
	if err != nil {
		return err
	}
	program, err := built.Module(ctx, filepath.Join(source, "test/bench/doors/localpath"), "local-path-provisioner",
		"github.com/rancher/local-path-provisioner", log)
	if err != nil {
		return err
	}
	archive, err := cluster.ProgramImage(ctx, localPathImage, program)
	if err != nil {
		return err
	}
	if err := b.LoadImage(ctx, archive); err != nil {
		return err
	}
	if _, err := b.KubectlInput(ctx, strings.NewReader(localPathManifest), "apply", "-f", "-"); err != nil {
		return err
	}
	_, err = b.Kubectl(ctx, "-n", localPathNamespace, "rollout", "status", "deployment/local-path-provisioner", "--timeout=240s")
	return err
}
