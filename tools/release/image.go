package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// nobody is the user of the programs unless a manifest sets another: the provisioner needs no rights on its node.
const nobody = "65532:65532"

// newImage returns an image that contains only the programs in dir.
func newImage(version, arch, dir string) (v1.Image, error) {
	layer, err := programsLayer(dir)
	if err != nil {
		return nil, err
	}
	return imageOf(version, arch, layer)
}

// imageOf returns an image with one layer. It has no date, because that would differ in every build.
func imageOf(version, arch string, layer []byte) (v1.Image, error) {
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer)), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err != nil {
		return nil, fmt.Errorf("compress layer: %w", err)
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err = mutate.ConfigFile(img, &v1.ConfigFile{
		OS: "linux", Architecture: arch, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			User: nobody, Entrypoint: []string{"/flexlvm"}, WorkingDir: "/",
			Labels: map[string]string{
				"org.opencontainers.image.title":    "flexlvm",
				"org.opencontainers.image.version":  version,
				"org.opencontainers.image.licenses": "Apache-2.0",
			},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("describe image: %w", err)
	}
	return mutate.Append(img, mutate.Addendum{Layer: l, History: v1.History{CreatedBy: "flexlvm tools/release"}})
}

// programsLayer returns an archive of the programs, in the root folder.
func programsLayer(dir string) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, p := range programs {
		content, err := os.ReadFile(filepath.Join(dir, p))
		if err != nil {
			return nil, fmt.Errorf("pack programs: %w", err)
		}
		if err := addFile(w, p, 0o755, content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("pack programs: %w", err)
	}
	return buf.Bytes(), nil
}

// addFile adds a file that belongs to root, without a date.
func addFile(w *tar.Writer, name string, mode int64, content []byte) error {
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(content))}); err != nil {
		return fmt.Errorf("pack %s: %w", name, err)
	}
	if _, err := w.Write(content); err != nil {
		return fmt.Errorf("pack %s: %w", name, err)
	}
	return nil
}

// writeDocker writes an image in the format of `docker save`, which all programs that load images can read.
func writeDocker(to string, ref name.Tag, img v1.Image) error {
	if err := tarball.WriteToFile(to, ref, img); err != nil {
		return fmt.Errorf("write %s: %w", to, err)
	}
	return nil
}

// newIndex returns an index of the images for several architectures.
func newIndex(images map[string]v1.Image) v1.ImageIndex {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range sortedKeys(images) {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        images[arch],
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	return index
}

// writeOCI writes an index as an archive of an OCI image layout. One annotation has the full name, which containerd
// reads, and the other has the tag, which all other programs read.
func writeOCI(to string, ref name.Tag, index v1.ImageIndex) error {
	dir, err := os.MkdirTemp("", "flexlvm-oci-")
	if err != nil {
		return fmt.Errorf("write %s: %w", to, err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return fmt.Errorf("write %s: %w", to, err)
	}
	if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          ref.String(),
		"org.opencontainers.image.ref.name": ref.TagStr(),
	})); err != nil {
		return fmt.Errorf("write %s: %w", to, err)
	}
	return packDir(to, dir)
}

// packDir writes the files of dir as an archive, in the order of their names.
func packDir(to, dir string) (err error) {
	var files []string
	if err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files = append(files, path)
		}
		return err
	}); err != nil {
		return fmt.Errorf("write %s: %w", to, err)
	}
	slices.Sort(files)
	f, err := os.Create(to)
	if err != nil {
		return fmt.Errorf("write %s: %w", to, err)
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}()
	w := tar.NewWriter(f)
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("write %s: %w", to, err)
		}
		relative, err := filepath.Rel(dir, file)
		if err != nil {
			return fmt.Errorf("write %s: %w", to, err)
		}
		if err := addFile(w, filepath.ToSlash(relative), 0o644, content); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("write %s: %w", to, err)
	}
	return nil
}
