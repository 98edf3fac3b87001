package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"github.com/flexlvm/flexlvm/test/built"
	"github.com/flexlvm/flexlvm/test/vm"
)

// imageName is what the shipped manifests call the image.
const imageName = "flexlvm/flexlvm"

// imagePrograms is the line of the Dockerfile that names the programs.
var imagePrograms = regexp.MustCompile(`(?m)^COPY (.+) /$`)

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
	dockerfile, err := os.ReadFile(filepath.Join(root, "installer/Dockerfile"))
	if err != nil {
		return "", fmt.Errorf("build image: %w", err)
	}
	names := imagePrograms.FindSubmatch(dockerfile)
	if names == nil {
		return "", errors.New("build image: installer/Dockerfile has no line COPY PROGRAM... /")
	}
	inputs := [][]byte{dockerfile, []byte(release)}
	for name := range strings.FieldsSeq(string(names[1])) {
		binary := filepath.Join(tmp, name)
		link := "-s -w -X github.com/flexlvm/flexlvm/internal/version.String=" + release
		if name == "flexlvm" && (runtime.GOARCH == "amd64" || runtime.GOARCH == "arm64") {
			link += " -E main.entry" // as the Makefile has it
		}
		if err := built.Go(ctx, root, binary, "./cmd/"+name, "-trimpath", "-ldflags", link); err != nil {
			return "", err
		}
		content, err := os.ReadFile(binary)
		if err != nil {
			return "", fmt.Errorf("build image: %w", err)
		}
		inputs = append(inputs, content)
	}
	dir, err := built.Once(ctx, "image-"+release, built.Key(inputs...), func(dir string) error {
		return packImage(ctx, root, tmp, "docker.io/"+imageName+":"+release, filepath.Join(dir, "flexlvm.tar"))
	})
	return filepath.Join(dir, "flexlvm.tar"), err
}

// packImage follows the Dockerfile without a daemon and without a network.
func packImage(ctx context.Context, root, binaries, name, archive string) (err error) {
	storage, err := os.MkdirTemp("", "flexlvm-buildah-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(storage)) }()
	buildah := []string{"--root", storage + "/root", "--runroot", storage + "/run", "--storage-driver", "vfs"}
	if err := run(ctx, "buildah", append(buildah, "bud", "--isolation", "chroot", "--quiet",
		"--file", filepath.Join(root, "installer/Dockerfile"), "--tag", name, binaries)...); err != nil {
		return err
	}
	return run(ctx, "buildah", append(buildah, "push", "--quiet", name, "docker-archive:"+archive+":"+name)...)
}
