package cluster

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/vm"
)

func TestTail(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	require.NoError(t, os.WriteFile(file, []byte("one\ntwo\n"+strings.Repeat("x", 1000)+"\n"), 0o600))
	require.Equal(t, "two\n"+strings.Repeat("x", longest)+"…", tail(file, 2))
	require.Equal(t, "one\n", tail(file, 10)[:4])
	require.Contains(t, tail(file+".missing", 2), "no such file")
}

func TestOverlay(t *testing.T) {
	root := t.TempDir()
	base, overlay, linked := filepath.Join(root, "base"), filepath.Join(root, "a/overlay"), filepath.Join(root, "linked")
	require.NoError(t, os.Mkdir(base, 0o700))
	require.NoError(t, os.MkdirAll(overlay, 0o700))
	require.NoError(t, os.Symlink(overlay, linked))
	require.NoError(t, Overlay(linked, base, "kind: A\n", `{"kind":"B"}`))
	content, err := os.ReadFile(filepath.Join(overlay, "kustomization.yaml"))
	require.NoError(t, err)
	require.JSONEq(t, `{"resources":["../../base"],"patches":[{"patch":"kind: A\n"},{"patch":"{\"kind\":\"B\"}"}]}`, string(content))
	require.ErrorContains(t, Overlay(overlay, filepath.Join(root, "missing")), "write overlay")
}

func TestImageArchive(t *testing.T) {
	layer, err := busyboxLayer([]byte("program"), []string{"busybox", "sh", "ls"})
	require.NoError(t, err)
	require.Equal(t, []string{"bin/", "etc/", "tmp/", "bin/busybox", "etc/passwd", "etc/group", "bin/sh", "bin/ls"}, names(t, layer))

	archive, err := imageArchive(layer, image{name: "a:1"}, image{name: "b:1", command: []string{"sleep"}})
	require.NoError(t, err)
	all := names(t, archive)
	require.Len(t, all, 4, "one layer, two configurations, one manifest")

	var manifest []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	require.NoError(t, json.Unmarshal(content(t, archive, "manifest.json"), &manifest))
	require.Len(t, manifest, 2)
	for i, name := range []string{"a:1", "b:1"} {
		require.Equal(t, []string{name}, manifest[i].RepoTags)
		require.Contains(t, all, manifest[i].Config)
		require.Equal(t, all[:1], manifest[i].Layers)
	}
}

func names(t *testing.T, archive []byte) []string {
	t.Helper()
	var all []string
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return all
		}
		require.NoError(t, err)
		all = append(all, h.Name)
	}
}

func content(t *testing.T, archive []byte, name string) []byte {
	t.Helper()
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		require.NoError(t, err)
		if h.Name == name {
			all, err := io.ReadAll(r)
			require.NoError(t, err)
			return all
		}
	}
}

func TestRunDirs(t *testing.T) {
	t.Setenv(vm.CacheEnv, t.TempDir())
	ctx := context.Background()
	first, err := makeRunDir(ctx, "first")
	require.NoError(t, err)

	_, err = makeRunDir(ctx, "first")
	require.ErrorContains(t, err, "is running already")
	_, err = Attach("second")
	require.ErrorIs(t, err, ErrNotRunning)

	second, err := makeRunDir(ctx, "second")
	require.NoError(t, err)
	require.DirExists(t, first.path, "it is in use")
	require.NoError(t, first.lock.Close()) // as when its holder dies
	require.NoError(t, RemoveStale(ctx))
	require.NoDirExists(t, first.path)
	require.DirExists(t, second.path)
	require.NoError(t, second.lock.Close())
}

func TestConfig(t *testing.T) {
	image := filepath.Join(t.TempDir(), "image.tar")
	require.NoError(t, os.WriteFile(image, nil, 0o600))
	for want, cfg := range map[string]Config{
		"":                {Images: []string{image}},
		`name "Big"`:      {Name: "Big"},
		"10 nodes":        {Nodes: 10},
		"no such file":    {Images: []string{image + ".missing"}},
		`name "../other"`: {Name: "../other"},
	} {
		got, err := cfg.withDefaults()
		if want != "" {
			require.ErrorContains(t, err, want)
			continue
		}
		if os.Geteuid() != 0 {
			require.ErrorContains(t, err, "root")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, 1, got.Nodes)
		require.Equal(t, int64(8<<30), got.DiskSize)
		require.Regexp(t, `^test-\d+$`, got.Name)
	}
}

func TestInitrdIsAlignedAndEnds(t *testing.T) {
	dir := t.TempDir()
	base := filepath.Join(dir, "base")
	require.NoError(t, os.WriteFile(base, []byte("12345"), 0o600))
	require.NoError(t, makeInitrd(filepath.Join(dir, "initrd"), base, map[string][]byte{"node.env": []byte("NODE=node1\n")}))
	got, err := os.ReadFile(filepath.Join(dir, "initrd"))
	require.NoError(t, err)
	require.Equal(t, []byte("12345\x00\x00\x00070701"), got[:14])
	for _, part := range []string{"files/seed/node.env\x00", "NODE=node1\n", "files/seed/init\x00", "TRAILER!!!\x00"} {
		require.Contains(t, string(got), part)
	}
}

// The image is cached by a hash of its sources. A source that the hash does not cover would leave an
// outdated image.
func TestImageIsMadeFromTheSourcesOfItsKey(t *testing.T) {
	root, err := vm.SourceDir()
	require.NoError(t, err)
	for dir, packages := range map[string]string{root: "./cmd/...", filepath.Join(root, "tools/release"): "."} {
		list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if not .Standard}}{{.Dir}}{{end}}", packages)
		list.Dir = dir
		list.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
		out, err := list.Output()
		require.NoError(t, err)
		found := false
		for _, at := range strings.Fields(string(out)) {
			inside, err := filepath.Rel(root, at)
			require.NoError(t, err)
			if !filepath.IsLocal(inside) {
				continue // another module, which go.sum covers
			}
			found = true
			require.True(t, slices.ContainsFunc(imageSources, func(source string) bool {
				return inside == source || strings.HasPrefix(inside, source+"/")
			}), "%s is linked into a program, and is not in %v", inside, imageSources)
		}
		require.True(t, found, dir)
	}
	inputs, err := readAll(root, imageSources)
	require.NoError(t, err)
	require.Contains(t, inputs, []byte("tools/release/image.go"))
	for i := 0; i < len(inputs); i += 2 { // a name and a content
		require.NotRegexp(t, `_test\.go$|/testdata/`, string(inputs[i]))
	}
}
