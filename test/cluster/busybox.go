package cluster

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flexlvm/flexlvm/test/built"
)

// BusyboxImage is the image of test pods: a shell and the usual tools. Every node has it.
const BusyboxImage = "docker.io/library/busybox:1.36"

// pauseImage holds a pod's namespaces. containerd is configured to use it.
const pauseImage = "flexlvm.test/pause:1"

// packing is this file. It is part of the images' keys, because it determines their content as much as their files
// do.
//
//go:embed busybox.go
var packing []byte

// busybox returns this machine's static busybox and the names of its applets.
func busybox(ctx context.Context) (binary []byte, applets []string, err error) {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return nil, nil, errors.New("make test images: busybox is missing; install the package busybox-static")
	}
	if dynamic, err := needsLoader(path); err != nil {
		return nil, nil, err
	} else if dynamic {
		return nil, nil, fmt.Errorf("make test images: %s is not static; install the package busybox-static", path)
	}
	binary, err = os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("make test images: %w", err)
	}
	list, err := exec.CommandContext(ctx, path, "--list").Output()
	if err != nil {
		return nil, nil, fmt.Errorf("list busybox applets: %w", err)
	}
	return binary, strings.Fields(string(list)), nil
}

// testImages returns an archive with the images that every node imports.
func testImages(ctx context.Context) (string, error) {
	binary, applets, err := busybox(ctx)
	if err != nil {
		return "", err
	}
	dir, err := built.Once(ctx, "images", built.Key(packing, binary, []byte(strings.Join(applets, " ")), []byte(BusyboxImage+pauseImage)), func(dir string) error {
		layer, err := busyboxLayer(binary, applets)
		if err != nil {
			return err
		}
		archive, err := imageArchive(layer,
			image{name: BusyboxImage, command: []string{"sh"}},
			image{name: pauseImage, command: []string{"sleep", "2147483647"}})
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "images.tar"), archive, 0o644)
	})
	return filepath.Join(dir, "images.tar"), err
}

// ProgramImage returns an archive for LoadImage with an image of busybox and a static program, which is its entry
// point.
func ProgramImage(ctx context.Context, name, program string) (string, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return "", fmt.Errorf("make image %s: %w", name, err)
	}
	binary, applets, err := busybox(ctx)
	if err != nil {
		return "", err
	}
	dir, err := built.Once(ctx, "program-image-"+filepath.Base(program), built.Key(packing, content, binary, []byte(name)), func(dir string) error {
		layer, err := busyboxLayer(binary, applets, tarFile{
			header: tar.Header{Name: "program", Typeflag: tar.TypeReg, Mode: 0o755}, content: content})
		if err != nil {
			return err
		}
		archive, err := imageArchive(layer, image{name: name, entrypoint: []string{"/program"}})
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "image.tar"), archive, 0o644)
	})
	return filepath.Join(dir, "image.tar"), err
}

// needsLoader reports whether the program is dynamically linked.
func needsLoader(path string) (bool, error) {
	f, err := elf.Open(path)
	if err != nil {
		return false, fmt.Errorf("make test images: %w", err)
	}
	defer f.Close()
	return slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }), nil
}

// programFiles returns programs of this machine as bin/NAME, and the libraries that they link at the paths where
// they expect them.
func programFiles(ctx context.Context, names ...string) ([]tarFile, error) {
	from := map[string]string{}
	for _, name := range names {
		program, err := exec.LookPath(name)
		if err != nil {
			return nil, fmt.Errorf("make test images: %w", err)
		}
		from["bin/"+name] = program
		libraries, err := built.Libraries(ctx, program)
		if err != nil {
			return nil, fmt.Errorf("make test images: %w", err)
		}
		for _, library := range libraries {
			from[strings.TrimPrefix(library, "/")] = library
		}
	}
	var files []tarFile
	for _, name := range slices.Sorted(maps.Keys(from)) {
		content, err := os.ReadFile(from[name])
		if err != nil {
			return nil, fmt.Errorf("make test images: %w", err)
		}
		files = append(files, tarFile{header: tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755}, content: content})
	}
	return files, nil
}

// busyboxLayer returns a root file system with busybox, links to it, and more files.
func busyboxLayer(binary []byte, applets []string, more ...tarFile) ([]byte, error) {
	files := []tarFile{
		{header: tar.Header{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755}},
		{header: tar.Header{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755}},
		{header: tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}},
		{header: tar.Header{Name: "bin/busybox", Typeflag: tar.TypeReg, Mode: 0o755}, content: binary},
		{header: tar.Header{Name: "etc/passwd", Typeflag: tar.TypeReg, Mode: 0o644},
			content: []byte("root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")},
		{header: tar.Header{Name: "etc/group", Typeflag: tar.TypeReg, Mode: 0o644},
			content: []byte("root:x:0:\nnogroup:x:65534:\n")},
	}
	for _, applet := range applets {
		if applet == "busybox" {
			continue
		}
		files = append(files, tarFile{header: tar.Header{
			Name: path.Join("bin", applet), Typeflag: tar.TypeSymlink, Linkname: "busybox", Mode: 0o777}})
	}
	return tarOf(append(files, more...))
}

type image struct {
	name       string
	entrypoint []string
	command    []string
}

// imageArchive returns an archive in the format of `docker save`, with images that share their only layer.
func imageArchive(layer []byte, images ...image) ([]byte, error) {
	type entry struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	layerSum := sha256.Sum256(layer)
	layerName := hex.EncodeToString(layerSum[:]) + ".tar"
	files := []tarFile{{header: tar.Header{Name: layerName, Typeflag: tar.TypeReg, Mode: 0o644}, content: layer}}
	var manifest []entry
	for _, img := range images {
		config, err := json.Marshal(map[string]any{
			"architecture": "amd64",
			"os":           "linux",
			"config":       map[string]any{"Entrypoint": img.entrypoint, "Cmd": img.command, "Env": []string{"PATH=/bin"}},
			"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(layerSum[:])}},
		})
		if err != nil {
			return nil, fmt.Errorf("describe image %s: %w", img.name, err)
		}
		sum := sha256.Sum256(config)
		name := hex.EncodeToString(sum[:]) + ".json"
		files = append(files, tarFile{header: tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644}, content: config})
		manifest = append(manifest, entry{Config: name, RepoTags: []string{img.name}, Layers: []string{layerName}})
	}
	content, err := json.Marshal(manifest)
	if err != nil {
		return nil, fmt.Errorf("describe images: %w", err)
	}
	files = append(files, tarFile{header: tar.Header{Name: "manifest.json", Typeflag: tar.TypeReg, Mode: 0o644}, content: content})
	return tarOf(files)
}

type tarFile struct {
	header  tar.Header
	content []byte
}

func tarOf(files []tarFile) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		f.header.Size = int64(len(f.content))
		if err := w.WriteHeader(&f.header); err != nil {
			return nil, fmt.Errorf("pack %s: %w", f.header.Name, err)
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, fmt.Errorf("pack %s: %w", f.header.Name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("pack archive: %w", err)
	}
	return buf.Bytes(), nil
}
