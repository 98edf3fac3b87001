package main

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/stretchr/testify/require"
)

// programsIn returns a folder of programs whose content is their name and word.
func programsIn(t *testing.T, word string) string {
	t.Helper()
	dir := t.TempDir()
	for _, p := range programs {
		require.NoError(t, os.WriteFile(filepath.Join(dir, p), []byte(p+word), 0o700))
	}
	return dir
}

func tag(t *testing.T, s string) name.Tag {
	t.Helper()
	ref, err := name.NewTag(s, name.StrictValidation)
	require.NoError(t, err)
	return ref
}

// archives writes an image of the programs in dir in both formats.
func archives(t *testing.T, dir string) (docker, oci string) {
	t.Helper()
	to := t.TempDir()
	docker, oci = filepath.Join(to, "docker.tar"), filepath.Join(to, "oci.tar")
	ref := tag(t, "localhost/flexlvm/flexlvm:v1")
	images := map[string]v1.Image{}
	for _, arch := range []string{"amd64", "arm64"} {
		image, err := newImage("v1", arch, dir)
		require.NoError(t, err)
		images[arch] = image
	}
	require.NoError(t, writeDocker(docker, ref, images["amd64"]))
	require.NoError(t, writeOCI(oci, ref, newIndex(images)))
	return docker, oci
}

func read(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(content)
}

func TestTheSameProgramsGiveTheSameArchives(t *testing.T) {
	docker, oci := archives(t, programsIn(t, ""))
	docker2, oci2 := archives(t, programsIn(t, ""))
	require.True(t, read(t, docker) == read(t, docker2), "two builds differ")
	require.True(t, read(t, oci) == read(t, oci2), "two builds differ")

	docker2, oci2 = archives(t, programsIn(t, "changed"))
	require.False(t, read(t, docker) == read(t, docker2), "the archive holds something else than the programs")
	require.False(t, read(t, oci) == read(t, oci2), "the archive holds something else than the programs")
}

func TestImageHoldsTheProgramsAlone(t *testing.T) {
	docker, _ := archives(t, programsIn(t, ""))
	ref := tag(t, "localhost/flexlvm/flexlvm:v1")
	image, err := tarball.ImageFromPath(docker, &ref)
	require.NoError(t, err)
	config, err := image.ConfigFile()
	require.NoError(t, err)
	require.Equal(t, "amd64", config.Architecture)
	require.Equal(t, "65532:65532", config.Config.User, "manifests say who needs more")
	require.Equal(t, []string{"/flexlvm"}, config.Config.Entrypoint)
	require.Equal(t, "v1", config.Config.Labels["org.opencontainers.image.version"])

	layers, err := image.Layers()
	require.NoError(t, err)
	require.Len(t, layers, 1)
	content, err := layers[0].Uncompressed()
	require.NoError(t, err)
	got := map[string]string{}
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		require.Equal(t, int64(0o755), h.Mode)
		require.Zero(t, h.Uid+h.Gid)
		text, err := io.ReadAll(r)
		require.NoError(t, err)
		got[h.Name] = string(text)
	}
	want := map[string]string{}
	for _, p := range programs {
		want[p] = p
	}
	require.Equal(t, want, got)
}

func TestPush(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	_, oci := archives(t, programsIn(t, ""))
	to := tag(t, strings.TrimPrefix(server.URL, "http://")+"/storage/flexlvm:v1")

	pinned, err := push(t.Context(), oci, to)
	require.NoError(t, err)
	require.Contains(t, pinned, "/storage/flexlvm@sha256:")
	ref, err := name.NewDigest(pinned)
	require.NoError(t, err)
	for _, arch := range []string{"amd64", "arm64"} {
		image, err := remote.Image(ref, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: arch}))
		require.NoError(t, err)
		config, err := image.ConfigFile()
		require.NoError(t, err)
		require.Equal(t, arch, config.Architecture)
	}
	tagged, err := remote.Index(to)
	require.NoError(t, err)
	digest, err := tagged.Digest()
	require.NoError(t, err)
	require.Equal(t, ref.DigestStr(), digest.String())

	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = push(canceled, oci, to)
	require.ErrorIs(t, err, context.Canceled)
}

// An archive that is pushed may come from elsewhere.
func TestPushWritesNothingOutsideOfItsFolder(t *testing.T) {
	for _, evil := range []tar.Header{
		{Name: "../evil", Typeflag: tar.TypeReg},
		{Name: "/evil", Typeflag: tar.TypeReg},
		{Name: "evil", Typeflag: tar.TypeSymlink, Linkname: "/"},
	} {
		file := filepath.Join(t.TempDir(), "evil.tar")
		f, err := os.Create(file)
		require.NoError(t, err)
		w := tar.NewWriter(f)
		require.NoError(t, w.WriteHeader(&evil))
		require.NoError(t, w.Close())
		require.NoError(t, f.Close())
		_, err = push(t.Context(), file, tag(t, "localhost:1/evil:v1"))
		require.ErrorContains(t, err, "has no place in an archive of an image")
	}
}

func TestAnArchiveForDockerHoldsOneArchitecture(t *testing.T) {
	for _, args := range [][]string{{"image"}, {"programs"}} {
		cmd := newRoot()
		cmd.SetArgs(append(args, "--version=v1", "--arch=amd64,arm64", "--to="+filepath.Join(t.TempDir(), "x")))
		require.ErrorContains(t, cmd.ExecuteContext(t.Context()), "one architecture")
	}
}
