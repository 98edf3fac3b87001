package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/flexlvm/flexlvm/test/built"
	"github.com/flexlvm/flexlvm/test/vm"
)

var newTag = regexp.MustCompile(`(?m)^\s*newTag: (v\S+)$`)

// ShippedRelease is the release that the manifests in installer/ install.
func ShippedRelease() (string, error) {
	root, err := vm.SourceDir()
	if err != nil {
		return "", err
	}
	file := filepath.Join(root, "installer/settings/kustomization.yaml")
	content, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("find shipped release: %w", err)
	}
	tag := newTag.FindSubmatch(content)
	if tag == nil {
		return "", fmt.Errorf("find shipped release: no newTag in %s", file)
	}
	return string(tag[1]), nil
}

// StartShipped is Start with the shipped release's image on the nodes; what it needs
// is set up and built first.
func StartShipped(ctx context.Context, cfg Config) (*Cluster, error) {
	if err := Setup(ctx, cfg.Log); err != nil {
		return nil, err
	}
	release, err := ShippedRelease()
	if err != nil {
		return nil, err
	}
	image, err := BuildImage(ctx, release)
	if err != nil {
		return nil, err
	}
	cfg.Images = append(cfg.Images, image)
	return Start(ctx, cfg)
}

// BuildImage builds flexlvm from this source as the given release and returns
// an archive of its image, fit for Config.Images and LoadImage.
func BuildImage(ctx context.Context, release string) (string, error) {
	root, err := vm.SourceDir()
	if err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp("", "flexlvm-image-")
	if err != nil {
		return "", fmt.Errorf("build image: %w", err)
	}
	defer os.RemoveAll(tmp)
	tool := filepath.Join(tmp, "release")
	if err := built.Go(ctx, filepath.Join(root, "tools/release"), tool, ".", "-trimpath"); err != nil {
		return "", err
	}
	programs := filepath.Join(tmp, "programs")
	if err := run(ctx, tool, "programs", "--source", root, "--version", release, "--to", programs); err != nil {
		return "", err
	}
	names, err := filepath.Glob(filepath.Join(programs, "*"))
	if err != nil {
		return "", fmt.Errorf("build image: %w", err)
	}
	var inputs [][]byte
	for _, name := range append(names, tool) {
		content, err := os.ReadFile(name)
		if err != nil {
			return "", fmt.Errorf("build image: %w", err)
		}
		inputs = append(inputs, content)
	}
	dir, err := built.Once(ctx, "image-"+release, built.Key(inputs...), func(dir string) error {
		return run(ctx, tool, "image", "--programs", programs, "--version", release, "--to", filepath.Join(dir, "flexlvm.tar"))
	})
	return filepath.Join(dir, "flexlvm.tar"), err
}
