package cluster

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// If a version differs, Go compiles that dependency and all that depends on it twice.
func TestConformanceModuleHasTheClustersVersions(t *testing.T) {
	programs, suite := moduleVersions(t, "kubernetes"), moduleVersions(t, "conformance")
	shared := 0
	for module, version := range suite {
		if want, ok := programs[module]; ok {
			require.Equal(t, want, version, module)
			shared++
		}
	}
	require.Greater(t, shared, 100)
}

// Without the same versions of all that client-go imports, each of these modules would compile anew what it uses of
// client-go and of Kubernetes' API, which takes minutes of a cold run.
func TestModulesShareVersions(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}",
		"k8s.io/client-go/kubernetes", "k8s.io/client-go/tools/clientcmd", "k8s.io/client-go/dynamic", "k8s.io/client-go/tools/leaderelection")
	out, err := cmd.Output()
	require.NoError(t, err)
	imported := strings.Fields(string(out))
	require.Contains(t, imported, "golang.org/x/net")
	want := moduleVersions(t, "../..")
	for _, dir := range []string{"kubernetes", "conformance", "resizer", "snapshotter", "../../tools", "../../tools/chart", "../../tools/promtool"} {
		for module, version := range moduleVersions(t, dir) {
			if _, ok := want[module]; ok && slices.Contains(imported, module) {
				assert.Equal(t, want[module], version, "%s/go.mod requires another version of %s than flexlvm's: change the older one with go get %[2]s@VERSION && go mod tidy", dir, module)
			}
		}
	}
}

// moduleVersions returns the versions that the go.mod in a folder requires, by module.
func moduleVersions(t *testing.T, dir string) map[string]string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	require.NoError(t, err)
	versions := map[string]string{}
	for _, match := range requirement.FindAllStringSubmatch(string(content), -1) {
		versions[match[1]] = match[2]
	}
	return versions
}

var requirement = regexp.MustCompile(`(?m)^\t(\S+) (v\S+)`)
