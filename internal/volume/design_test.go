package volume

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// docs/design.md refers only to files that exist.
func TestDesignNamesWhatThereIs(t *testing.T) {
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, "docs", "design.md"))
	require.NoError(t, err)
	paths := regexp.MustCompile("`((?:internal|cmd|installer|pkg|api)/[^` ]*)`").FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		_, err := os.Stat(filepath.Join(root, path[1]))
		require.NoError(t, err)
	}
}
