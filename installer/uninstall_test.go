package installer_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

// With a definition Kubernetes deletes every VolumeManager and LocalVolume, and no provisioner is
// there any more: what the guide deletes together is everything but the definitions.
func TestUninstallingSparesTheDefinitions(t *testing.T) {
	guide, err := os.ReadFile("../docs/install.md")
	require.NoError(t, err)
	commands := regexp.MustCompile(`(?m)kubectl delete -k installer/ .*$`).FindAllString(string(guide), -1)
	require.Len(t, commands, 1)
	found := regexp.MustCompile(` -l '([^']+)'`).FindStringSubmatch(commands[0])
	require.NotNil(t, found, commands[0])
	selector, err := labels.Parse(found[1])
	require.NoError(t, err)

	for where, object := range objects(t) {
		if strings.HasPrefix(where, "uninstall/") {
			continue // a patch
		}
		accessor, err := meta.Accessor(object)
		require.NoError(t, err)
		require.True(t, selector.Matches(labels.Set(accessor.GetLabels())), "%s would stay", where)
	}
	files, err := filepath.Glob("base/crd/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		var definition metav1.PartialObjectMetadata
		require.NoError(t, yaml.Unmarshal(content, &definition))
		require.Equal(t, "flexlvm", definition.Labels["app.kubernetes.io/part-of"], file)
		require.False(t, selector.Matches(labels.Set(definition.Labels)), "%s would be deleted", file)
	}
}
