package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/sigstore/sigstore/pkg/signature"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdxlib"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// copyOfSource copies the project's files, as git lists them, to another folder and returns it.
func copyOfSource(t *testing.T) string {
	t.Helper()
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = "../.."
	out, err := list.Output()
	require.NoError(t, err)
	to := filepath.Join(t.TempDir(), "elsewhere")
	for file := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join("../..", file))
		if os.IsNotExist(err) {
			continue // removed but not yet committed
		}
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(to, file)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(to, file), content, 0o600))
	}
	return to
}

// shippedVersion returns the version of the manifests.
func shippedVersion(t *testing.T) string {
	t.Helper()
	_, rest, found := strings.Cut(read(t, "../../charts/flexlvm/Chart.yaml"), "\nappVersion: ")
	require.True(t, found)
	version, _, _ := strings.Cut(rest, "\n")
	return version
}

func newKey(t *testing.T) (file string, public *ecdsa.PublicKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	return keyFile(t, der), &key.PublicKey
}

func keyFile(t *testing.T, der []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "key.pem")
	require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
	return file
}

// Two releases of one source are byte-identical, wherever the source lies. A campaign checks all
// architectures.
func TestTheSameSourceGivesTheSameRelease(t *testing.T) {
	arches := []string{runtime.GOARCH}
	if os.Getenv("FLEXLVM_CAMPAIGN") != "" {
		arches = []string{"amd64", "arm64"}
	}
	version := shippedVersion(t)
	key, public := newKey(t)
	var dirs []string
	for _, from := range []string{"../..", copyOfSource(t)} {
		to := filepath.Join(t.TempDir(), "release")
		cmd := newRoot()
		cmd.SetArgs([]string{"release", "--source", from, "--version", version, "--arch", strings.Join(arches, ","), "--to", to, "--sign-key", key})
		require.NoError(t, cmd.ExecuteContext(t.Context()))
		dirs = append(dirs, to)
	}
	first, err := os.ReadDir(dirs[0])
	require.NoError(t, err)
	second, err := os.ReadDir(dirs[1])
	require.NoError(t, err)
	require.Len(t, second, len(first))
	names := []string{}
	for _, f := range first {
		names = append(names, f.Name())
		require.True(t, read(t, filepath.Join(dirs[0], f.Name())) == read(t, filepath.Join(dirs[1], f.Name())), "%s differs", f.Name())
	}
	want := []string{"SHA256SUMS", "SHA256SUMS.sig", "flexlvm-" + version[1:] + ".tgz",
		"flexlvm-" + version + "-image.tar", "flexlvm-" + version + "-installer.tar.gz", "flexlvm-" + version + ".spdx.json"}
	for _, arch := range arches {
		want = append(want, "flexlvm-"+version+"-linux-"+arch+".tar.gz")
		for _, system := range pluginSystems {
			want = append(want, platform{system, arch}.archive(version))
		}
	}
	want = append(want, plugin+"-"+version+"-krew.yaml")
	require.ElementsMatch(t, want, names)

	signed := read(t, filepath.Join(dirs[0], sums))
	require.Equal(t, len(want)-2, strings.Count(signed, "\n"), "all but itself and its signature")
	// cosign verify-blob calls this.
	verifier, err := signature.LoadVerifier(public, crypto.SHA256)
	require.NoError(t, err)
	verify := func(content string) error {
		text := base64.NewDecoder(base64.StdEncoding, strings.NewReader(read(t, filepath.Join(dirs[0], sums+".sig"))))
		return verifier.VerifySignature(text, strings.NewReader(content))
	}
	require.NoError(t, verify(signed))
	require.Error(t, verify(signed+" "))
	check := exec.Command("sha256sum", "--check", "--quiet", sums)
	check.Dir = dirs[0]
	out, err := check.CombinedOutput()
	require.NoError(t, err, string(out))

	testProgramsOfRelease(t, dirs[0], version)
	testPluginOfRelease(t, dirs[0], version, arches)
	testBillOfRelease(t, filepath.Join(dirs[0], "flexlvm-"+version+".spdx.json"), version)
}

// testProgramsOfRelease runs the released programs and checks that no tests are among the files.
func testProgramsOfRelease(t *testing.T, dir, version string) {
	folder := "flexlvm-" + version + "-linux-" + runtime.GOARCH
	files := unpacked(t, filepath.Join(dir, folder+".tar.gz"))
	require.Len(t, files, len(programs))
	for _, name := range programs {
		program := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(program, files[folder+"/"+name], 0o700))
		says := "--version"
		if strings.HasPrefix(name, "flexlvm") {
			says = "version"
		}
		out, err := exec.Command(program, says).Output()
		require.NoError(t, err, name)
		require.Contains(t, strings.Fields(string(out)), version, name)
	}
	// They are 9.0 and 2.2 MiB (2026-11-28). The linker fills pages, so that one line can cost 4 KiB.
	for program, most := range map[string]int{"csi": 19 << 19, "installer": 9 << 18} {
		require.Less(t, len(files[folder+"/"+program]), most, "nearly all of %s is resident on every node", program)
	}
	tagged := regexp.MustCompile(`"org\.opencontainers\.image\.ref\.name": *"` + regexp.QuoteMeta(version) + `"`)
	require.True(t, tagged.MatchString(read(t, filepath.Join(dir, "flexlvm-"+version+"-image.tar"))), "the image is of another version")

	chart := unpacked(t, filepath.Join(dir, "flexlvm-"+version[1:]+".tgz"))
	require.Contains(t, string(chart["flexlvm/Chart.yaml"]), "appVersion: "+version)
	require.Contains(t, chart, "flexlvm/templates/NOTES.txt")
	manifests := unpacked(t, filepath.Join(dir, "flexlvm-"+version+"-installer.tar.gz"))
	for _, file := range []string{"installer/kustomization.yaml", "examples/volumegroup.yaml", "monitoring/kustomization.yaml", "docs/install.md"} {
		require.Contains(t, manifests, file)
	}
	require.NotContains(t, manifests, "installer/manifests_test.go")
}

// testPluginOfRelease reads the manifest as krew does, and runs the plugin that it installs.
func testPluginOfRelease(t *testing.T, dir, version string, arches []string) {
	var manifest struct {
		APIVersion string            `yaml:"apiVersion"`
		Kind       string            `yaml:"kind"`
		Metadata   map[string]string `yaml:"metadata"`
		Spec       struct {
			Version          string `yaml:"version"`
			Homepage         string `yaml:"homepage"`
			ShortDescription string `yaml:"shortDescription"`
			Description      string `yaml:"description"`
			Caveats          string `yaml:"caveats"`
			Platforms        []struct {
				Selector struct {
					MatchLabels map[string]string `yaml:"matchLabels"`
				} `yaml:"selector"`
				URI    string `yaml:"uri"`
				Sha256 string `yaml:"sha256"`
				Bin    string `yaml:"bin"`
				Files  []struct {
					From string `yaml:"from"`
					To   string `yaml:"to"`
				} `yaml:"files"`
			} `yaml:"platforms"`
		} `yaml:"spec"`
	}
	strict := yaml.NewDecoder(strings.NewReader(read(t, filepath.Join(dir, plugin+"-"+version+"-krew.yaml"))))
	strict.KnownFields(true)
	require.NoError(t, strict.Decode(&manifest))
	require.Equal(t, "krew.googlecontainertools.github.com/v1alpha2", manifest.APIVersion)
	require.Equal(t, "Plugin", manifest.Kind)
	require.Equal(t, "flexlvm", manifest.Metadata["name"])
	require.Equal(t, version, manifest.Spec.Version)
	require.Less(t, len(manifest.Spec.ShortDescription), 50, "as krew wants it")
	require.NotEmpty(t, manifest.Spec.Description)
	require.Len(t, manifest.Spec.Platforms, len(arches)*len(pluginSystems))
	ran := false
	for _, p := range manifest.Spec.Platforms {
		labels := p.Selector.MatchLabels
		file, there := strings.CutPrefix(p.URI, downloads+"/"+version+"/")
		require.True(t, there, p.URI)
		require.Equal(t, platform{labels["os"], labels["arch"]}.archive(version), file)
		require.Equal(t, fmt.Sprintf("%x", sha256.Sum256([]byte(read(t, filepath.Join(dir, file))))), p.Sha256)
		files := unpacked(t, filepath.Join(dir, file))
		for _, f := range p.Files {
			require.NotEmpty(t, files[f.From], f.From)
		}
		require.Contains(t, string(files["LICENSE"]), "Apache License")
		if labels["os"] != runtime.GOOS || labels["arch"] != runtime.GOARCH {
			continue
		}
		program := filepath.Join(t.TempDir(), p.Bin)
		require.NoError(t, os.WriteFile(program, files[p.Bin], 0o700))
		out, err := exec.Command(program, "--version").Output()
		require.NoError(t, err)
		require.Contains(t, string(out), version)
		ran = true
	}
	require.True(t, ran)
}

func testBillOfRelease(t *testing.T, file, version string) {
	var bill document
	require.NoError(t, json.Unmarshal([]byte(read(t, file)), &bill))
	ids := map[string]pkg{bill.SPDXID: {}}
	for _, p := range bill.Packages {
		require.NotContains(t, ids, p.SPDXID)
		require.Regexp(t, `^SPDXRef-[A-Za-z0-9.-]+$`, p.SPDXID)
		ids[p.SPDXID] = p
	}
	for _, r := range bill.Relationships {
		require.Contains(t, ids, r.Element)
		require.Contains(t, ids, r.Related)
	}
	others, err := spdxjson.Read(strings.NewReader(read(t, file))) // read by an independent library
	require.NoError(t, err)
	require.NoError(t, spdxlib.ValidateDocument(others))
	require.Len(t, others.Packages, len(bill.Packages))
	driver := ids["SPDXRef-Program-flexlvm-"+runtime.GOARCH]
	require.Equal(t, version, driver.VersionInfo)
	require.Len(t, driver.Checksums, 1)
	require.Equal(t, version, ids["SPDXRef-Program-kubectl-flexlvm-"+runtime.GOARCH].VersionInfo)
	mod := read(t, "../../go.mod")
	_, cobra, found := strings.Cut(mod, "github.com/spf13/cobra ")
	require.True(t, found)
	cobra, _, _ = strings.Cut(cobra, "\n")
	linked := ids["SPDXRef-Module-github.com-spf13-cobra-"+cobra]
	require.Equal(t, "pkg:golang/github.com/spf13/cobra@"+cobra, linked.ExternalRefs[0].Locator)
}

func unpacked(t *testing.T, file string) map[string][]byte {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	files := map[string][]byte{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		require.True(t, h.ModTime.Unix() == 0, "%s has a date", h.Name)
		files[h.Name], err = io.ReadAll(r)
		require.NoError(t, err)
	}
}

// All parts of a release have one version: its image's version is in the manifests and the chart.
func TestReleaseOfAnotherVersionIsRefused(t *testing.T) {
	to := filepath.Join(t.TempDir(), "release")
	cmd := newRoot()
	cmd.SetArgs([]string{"release", "--source", "../..", "--version", "v99.0.0", "--to", to})
	require.ErrorContains(t, cmd.ExecuteContext(t.Context()), "is of another")
	require.NoDirExists(t, to)
}

func TestKeysThatAreRefused(t *testing.T) {
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(other)
	require.NoError(t, err)
	for says, file := range map[string]string{
		"no such file":             filepath.Join(t.TempDir(), "missing"),
		"an ECDSA key on P-256":    keyFile(t, der),
		"it must be PKCS #8":       keyFile(t, []byte("encrypted")),
		"it is not PEM; make one ": "release_test.go",
	} {
		_, err := sign(file, nil)
		require.ErrorContains(t, err, says)
	}
}
