package cluster

import (
	"context"
	"io"
	"path/filepath"

	"github.com/flexlvm/flexlvm/test/built"
	"github.com/flexlvm/flexlvm/test/vm"
)

// BuildResizer returns CSI's resizer, building it at the first call: some three minutes on
// two cores.
func BuildResizer(ctx context.Context, log io.Writer) (string, error) {
	root, err := vm.SourceDir()
	if err != nil {
		return "", err
	}
	return built.Module(ctx, filepath.Join(root, "test/cluster/resizer"), "csi-resizer", "github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer", log)
}
