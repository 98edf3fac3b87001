package cluster

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"

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

var resizerImage = regexp.MustCompile(`(?m)^\s*image: (\S+/csi-resizer:\S+)$`)

// BuildResizerImage returns an archive of an image of CSI's resizer, under the name by which
// the manifests in installer/csi/resizer call it.
func BuildResizerImage(ctx context.Context, log io.Writer) (string, error) {
	root, err := vm.SourceDir()
	if err != nil {
		return "", err
	}
	manifest, err := os.ReadFile(filepath.Join(root, "installer/csi/resizer/kustomization.yaml"))
	if err != nil {
		return "", fmt.Errorf("find the image of csi-resizer: %w", err)
	}
	name := resizerImage.FindSubmatch(manifest)
	if name == nil {
		return "", fmt.Errorf("find the image of csi-resizer: installer/csi/resizer names none")
	}
	program, err := BuildResizer(ctx, log)
	if err != nil {
		return "", err
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return "", fmt.Errorf("pack csi-resizer: %w", err)
	}
	dir, err := built.Once(ctx, "csi-resizer-image", built.Key(content, name[1]), func(dir string) error {
		layer, err := tarOf([]tarFile{{header: tar.Header{Name: "csi-resizer", Typeflag: tar.TypeReg, Mode: 0o755}, content: content}})
		if err != nil {
			return err
		}
		archive, err := imageArchive(layer, image{name: string(name[1]), entrypoint: []string{"/csi-resizer"}})
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "csi-resizer.tar"), archive, 0o644)
	})
	return filepath.Join(dir, "csi-resizer.tar"), err
}
