package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// sums is the file with the checksums of all other files, in the format of sha256sum.
const sums = "SHA256SUMS"

// release fills the folder o.to with a release: programs and images for every architecture, the chart, the
// manifests, the bill of materials, and checksums, which are signed if keyFile names a key. The content does not
// depend on when, where or by whom it is built.
func (o *options) release(ctx context.Context, keyFile string) error {
	if err := o.checkVersion(); err != nil {
		return err
	}
	ref, err := name.NewTag(o.name+":"+o.version, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("--name, --version: %w", err)
	}
	if err := os.Mkdir(o.to, 0o755); err != nil {
		return fmt.Errorf("make release: %w; remove the one that is there", err)
	}
	work, err := os.MkdirTemp("", "flexlvm-release-")
	if err != nil {
		return fmt.Errorf("make release: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()

	images := map[string]v1.Image{}
	dirs := map[string]string{}
	for _, arch := range o.arches {
		dirs[arch] = filepath.Join(work, arch)
		if err := source(o.source).build(ctx, o.version, arch, dirs[arch]); err != nil {
			return err
		}
		if images[arch], err = newImage(o.version, arch, dirs[arch]); err != nil {
			return err
		}
		folder := fmt.Sprintf("flexlvm-%s-linux-%s", o.version, arch)
		if err := archive(filepath.Join(o.to, folder+".tar.gz"), 0o755, packed{dirs[arch], folder}); err != nil {
			return err
		}
	}
	if err := writeOCI(filepath.Join(o.to, "flexlvm-"+o.version+"-image.tar"), ref, newIndex(images)); err != nil {
		return err
	}
	if err := archive(filepath.Join(o.to, "flexlvm-"+strings.TrimPrefix(o.version, "v")+".tgz"), 0o644, packed{filepath.Join(o.source, "charts/flexlvm"), "flexlvm"}); err != nil {
		return err
	}
	if err := o.releaseManifests(); err != nil {
		return err
	}
	plugins, err := o.releasePlugin(ctx, work)
	if err != nil {
		return err
	}
	if err := writeSBOM(filepath.Join(o.to, "flexlvm-"+o.version+".spdx.json"), o.version, dirs, plugins); err != nil {
		return err
	}
	return sumAndSign(o.to, keyFile)
}

// releaseManifests packs the manifests, and what their instructions and the chart's notes refer to.
func (o *options) releaseManifests() error {
	var folders []packed
	for _, folder := range []string{"docs", "examples", "installer", "monitoring"} {
		folders = append(folders, packed{filepath.Join(o.source, folder), folder})
	}
	return archive(filepath.Join(o.to, "flexlvm-"+o.version+"-installer.tar.gz"), 0o644, folders...)
}

// checkVersion returns an error unless the manifests and the chart are of this version.
func (o *options) checkVersion() error {
	for file, line := range map[string]string{
		"installer/settings/kustomization.yaml": "    newTag: " + o.version + "\n",
		"charts/flexlvm/Chart.yaml":             "\nappVersion: " + o.version + "\n",
	} {
		content, err := os.ReadFile(filepath.Join(o.source, file))
		if err != nil {
			return fmt.Errorf("make release: %w", err)
		}
		if !strings.Contains(string(content), line) {
			return fmt.Errorf("make release %s: %s is of another; change newTag in installer/settings/kustomization.yaml, and run `make generate`", o.version, file)
		}
	}
	return nil
}

// packed is a folder of an archive: the files below dir, under the name folder.
type packed struct{ dir, folder string }

// archive packs the files of folders in the order of their names and without dates. It leaves out Go files.
func archive(to string, mode int64, folders ...packed) (err error) {
	f, err := os.Create(to)
	if err != nil {
		return fmt.Errorf("write %s: %w", to, err)
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}()
	z := gzip.NewWriter(f)
	w := tar.NewWriter(z)
	for _, p := range folders {
		err = errors.Join(err, p.addTo(w, mode))
	}
	if err := errors.Join(err, w.Close(), z.Close()); err != nil {
		return fmt.Errorf("write %s: %w", to, err)
	}
	return nil
}

func (p packed) addTo(w *tar.Writer, mode int64) error {
	// WalkDir guarantees the order of names.
	return filepath.WalkDir(p.dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || filepath.Ext(file) == ".go" {
			return err
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(p.dir, file)
		if err != nil {
			return err
		}
		return addFile(w, path.Join(p.folder, filepath.ToSlash(relative)), mode, content)
	})
}

// sumAndSign writes the checksums of the files in dir, and their signature.
func sumAndSign(dir, keyFile string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return fmt.Errorf("write checksums: %w", err)
	}
	slices.Sort(files)
	var b strings.Builder
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("write checksums: %w", err)
		}
		fmt.Fprintf(&b, "%x  %s\n", sha256.Sum256(content), filepath.Base(file))
	}
	if err := os.WriteFile(filepath.Join(dir, sums), []byte(b.String()), 0o644); err != nil {
		return fmt.Errorf("write checksums: %w", err)
	}
	if keyFile == "" {
		return nil
	}
	signature, err := sign(keyFile, []byte(b.String()))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, sums+".sig"), signature, 0o644); err != nil {
		return fmt.Errorf("write signature: %w", err)
	}
	return nil
}
