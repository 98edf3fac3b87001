package installer_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// The sidecars that are installed are those that are tested, and nothing is mounted over a
// program of the image, which has them in its root folder.
func TestSidecars(t *testing.T) {
	testSidecar(t, "resizer", "github.com/kubernetes-csi/external-resizer/v2")
	testSidecar(t, "snapshotter", "github.com/kubernetes-csi/external-snapshotter/v8")
}

func testSidecar(t *testing.T, name, path string) {
	t.Helper()
	manifest, err := os.ReadFile("csi/" + name + "/kustomization.yaml")
	require.NoError(t, err)
	module, err := os.ReadFile("../test/cluster/" + name + "/go.mod")
	require.NoError(t, err)
	version := regexp.MustCompile(`csi-` + name + `:(v\S+)\n`).FindSubmatch(manifest)
	require.NotNil(t, version)
	require.Contains(t, string(module), path+" "+string(version[1])+" ")
	programs, err := filepath.Glob("../cmd/*")
	require.NoError(t, err)
	require.NotEmpty(t, programs)
	mounts := regexp.MustCompile(`mountPath: ([^}]+)}`).FindAllSubmatch(manifest, -1)
	require.Len(t, mounts, 2)
	for _, m := range mounts {
		for _, p := range programs {
			require.NotEqual(t, "/"+filepath.Base(p), string(m[1]))
		}
	}
}
