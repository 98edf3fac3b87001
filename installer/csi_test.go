package installer_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// The resizer that is installed is the one that is tested, and nothing is mounted over a
// program of the image, which has them in its root folder.
func TestResizer(t *testing.T) {
	manifest, err := os.ReadFile("csi/resizer/kustomization.yaml")
	require.NoError(t, err)
	module, err := os.ReadFile("../test/cluster/resizer/go.mod")
	require.NoError(t, err)
	version := regexp.MustCompile(`csi-resizer:(v\S+)\n`).FindSubmatch(manifest)
	require.NotNil(t, version)
	require.Contains(t, string(module), "github.com/kubernetes-csi/external-resizer/v2 "+string(version[1])+" ")
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
