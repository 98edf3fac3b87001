package cluster

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/flexlvm/flexlvm/test/built"
	"github.com/flexlvm/flexlvm/test/vm"
)

const snapshotterModule = "github.com/kubernetes-csi/external-snapshotter/v8"

// sidecars are the packages of CSI's sidecars, by the name of their folder in test/cluster and in installer/csi.
var sidecars = map[string]string{
	"resizer":     "github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer",
	"snapshotter": snapshotterModule + "/cmd/csi-snapshotter",
}

// BuildSidecar returns CSI's resizer or snapshotter. The first call builds it, which takes about three minutes on
// two cores.
func BuildSidecar(ctx context.Context, name string, log io.Writer) (string, error) {
	root, err := vm.SourceDir()
	if err != nil {
		return "", err
	}
	return built.Module(ctx, filepath.Join(root, "test/cluster", name), "csi-"+name, sidecars[name], log)
}

// BuildSnapshotController returns the cluster's snapshot controller.
func BuildSnapshotController(ctx context.Context, log io.Writer) (string, error) {
	root, err := vm.SourceDir()
	if err != nil {
		return "", err
	}
	return built.Module(ctx, filepath.Join(root, "test/cluster/snapshotter"), "snapshot-controller", snapshotterModule+"/cmd/snapshot-controller", log)
}

// SnapshotCRDs returns the files that define VolumeSnapshots and VolumeGroupSnapshots.
func SnapshotCRDs(ctx context.Context) ([]string, error) {
	root, err := vm.SourceDir()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/kubernetes-csi/external-snapshotter/client/v8")
	cmd.Dir = filepath.Join(root, "test/cluster/snapshotter")
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("find the CRDs of snapshots: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(out)), "config/crd/*snapshot.storage.k8s.io_*.yaml"))
	if err == nil && len(files) != 6 {
		err = fmt.Errorf("find the CRDs of snapshots: there are %d in %s and should be 6", len(files), out)
	}
	return files, err
}

// BuildSidecarImage returns an archive of an image of CSI's resizer or snapshotter, under the name in the manifests
// in installer/csi.
func BuildSidecarImage(ctx context.Context, name string, log io.Writer) (string, error) {
	root, err := vm.SourceDir()
	if err != nil {
		return "", err
	}
	manifest, err := os.ReadFile(filepath.Join(root, "installer/csi", name, "kustomization.yaml"))
	if err != nil {
		return "", fmt.Errorf("find the image of csi-%s: %w", name, err)
	}
	reference := regexp.MustCompile(`(?m)^\s*image: (\S+/csi-` + name + `:\S+)$`).FindSubmatch(manifest)
	if reference == nil {
		return "", fmt.Errorf("find the image of csi-%[1]s: installer/csi/%[1]s names none", name)
	}
	program, err := BuildSidecar(ctx, name, log)
	if err != nil {
		return "", err
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return "", fmt.Errorf("pack csi-%s: %w", name, err)
	}
	file := "csi-" + name
	dir, err := built.Once(ctx, file+"-image", built.Key(packing, content, reference[1]), func(dir string) error {
		layer, err := tarOf([]tarFile{{header: tar.Header{Name: file, Typeflag: tar.TypeReg, Mode: 0o755}, content: content}})
		if err != nil {
			return err
		}
		archive, err := imageArchive(layer, image{name: string(reference[1]), entrypoint: []string{"/" + file}})
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, file+".tar"), archive, 0o644)
	})
	return filepath.Join(dir, file+".tar"), err
}
