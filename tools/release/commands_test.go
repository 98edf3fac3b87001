//go:build campaign

package main

import (
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
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

// runShown runs a command that a page shows, in the checkout, after replacing each placeholder by the
// value that follows it.
func runShown(t *testing.T, page, command string, placeholders ...string) string {
	t.Helper()
	require.Contains(t, read(t, filepath.Join("../..", page)), command)
	var said strings.Builder
	cmd := exec.CommandContext(t.Context(), "bash", "-euc", strings.NewReplacer(placeholders...).Replace(command))
	cmd.Dir, cmd.Stdout, cmd.Stderr = "../..", &said, os.Stderr
	cmd.Env = append(os.Environ(), "MAKELEVEL=", "MAKEFLAGS=") // a user's make has no parent make that it would mention
	require.NoError(t, cmd.Run(), command)
	return said.String()
}

// make push prints the reference of the image that it pushed, for both architectures.
func TestMakePush(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	to := strings.TrimPrefix(server.URL, "http://")
	said := strings.Fields(runShown(t, "docs/install.md", "make push REGISTRY=registry.example.org/storage", "registry.example.org", to))
	pinned, err := name.NewDigest(said[len(said)-1])
	require.NoError(t, err)
	require.Equal(t, to+"/storage/flexlvm", pinned.Context().Name())
	for _, arch := range []string{"amd64", "arm64"} {
		image, err := remote.Image(pinned, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: arch}))
		require.NoError(t, err)
		config, err := image.ConfigFile()
		require.NoError(t, err)
		require.Equal(t, arch, config.Architecture)
	}
	tagged, err := remote.Index(tag(t, to+"/storage/flexlvm:"+shippedVersion(t)))
	require.NoError(t, err)
	digest, err := tagged.Digest()
	require.NoError(t, err)
	require.Equal(t, pinned.DigestStr(), digest.String())
}

func TestMakeImageForAnotherArchitecture(t *testing.T) {
	runShown(t, "docs/install.md", "make image ARCH=arm64")
	image, err := tarball.ImageFromPath("../../bin/image.tar", nil)
	require.NoError(t, err)
	config, err := image.ConfigFile()
	require.NoError(t, err)
	require.Equal(t, "arm64", config.Architecture)
}

// The commands of docs/releases.md work: creating a key, a release signed with it, and verifying the
// release with the public key.
func TestMakeRelease(t *testing.T) {
	page := "docs/releases.md"
	dir := t.TempDir()
	key, public := filepath.Join(dir, "release.key"), filepath.Join(dir, "release.pub")
	runShown(t, page, "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out release.key", "release.key", key)
	runShown(t, page, "openssl pkey -in release.key -pubout -out release.pub", "release.key", key, "release.pub", public)
	runShown(t, page, "make release KEY=release.key", "release.key", key)
	verify := "base64 -d SHA256SUMS.sig >sig && openssl dgst -sha256 -verify release.pub -signature sig SHA256SUMS"
	require.Contains(t, runShown(t, page, verify, "base64", "cd bin/release && base64", ">sig", ">"+filepath.Join(dir, "sig"), "-signature sig", "-signature "+filepath.Join(dir, "sig"), "release.pub", public), "Verified OK")
	runShown(t, page, "sha256sum --check SHA256SUMS", "sha256sum", "cd bin/release && sha256sum")
}
