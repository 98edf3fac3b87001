package cluster

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"github.com/flexlvm/flexlvm/test/built"
	"github.com/flexlvm/flexlvm/test/vm"
)

var newTag = regexp.MustCompile(`(?m)^\s*newTag: (v\S+)$`)

// ShippedRelease returns the release that the manifests in installer/ install.
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

// NextRelease is the release to which the tests upgrade the shipped one.
const NextRelease = "v99.0.0-next"

// BuildReleases builds the images of both releases.
func BuildReleases(ctx context.Context) error {
	shipped, err := ShippedRelease()
	if err != nil {
		return err
	}
	for _, release := range []string{shipped, NextRelease} {
		if _, err := BuildImage(ctx, release); err != nil {
			return err
		}
	}
	return nil
}

// StartShipped is Start with the shipped release's image on the nodes. It first builds the image.
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

// imageSources are the sources of the programs and their image.
var imageSources = []string{"go.mod", "go.sum", "api", "cmd", "internal", "pkg", "tools/release"}

// BuildImage builds flexlvm from this source as the given release and returns an archive of its image, for
// Config.Images and LoadImage. The result is cached: several suites use the same image, and linking its programs
// takes longer than reading all of their sources.
func BuildImage(ctx context.Context, release string) (string, error) {
	root, err := vm.SourceDir()
	if err != nil {
		return "", err
	}
	inputs, err := readAll(root, imageSources)
	if err != nil {
		return "", fmt.Errorf("build image: %w", err)
	}
	inputs = append(inputs, []byte(runtime.Version()+runtime.GOARCH))
	dir, err := built.Once(ctx, "image-"+release, built.Key(inputs...), func(dir string) error {
		tmp, err := os.MkdirTemp("", "flexlvm-image-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(tmp)
		tool := filepath.Join(tmp, "release")
		if err := built.Go(ctx, filepath.Join(root, "tools/release"), tool, ".", "-trimpath"); err != nil {
			return err
		}
		return run(ctx, tool, "image", "--source", root, "--version", release, "--to", filepath.Join(dir, "flexlvm.tar"))
	})
	if err != nil {
		return "", err
	}
	// Also the images of releases that are no longer built.
	return filepath.Join(dir, "flexlvm.tar"), built.RemoveUnused(filepath.Join(filepath.Dir(dir), "image-v*-????????????????"))
}

// readAll returns the names and contents of all files, including those in folders, except tests.
func readAll(root string, names []string) (all [][]byte, err error) {
	for _, name := range names {
		err := filepath.WalkDir(filepath.Join(root, name), func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if entry.IsDir() {
				if entry.Name() == "testdata" {
					return fs.SkipDir
				}
				return nil
			}
			if strings.HasSuffix(path, "_test.go") {
				return nil
			}
			inside, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			content, err := os.ReadFile(path)
			all = append(all, []byte(inside), content)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}
