package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Links of what is not released yet lead to files and headings that exist, as seen from the repository's root, where
// CHANGELOG.md is.
func TestLinksOfTheChangelog(t *testing.T) {
	files, err := filepath.Glob("../changelog/unreleased/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	link := regexp.MustCompile(`\]\(([^)#]+)(?:#([^)]+))?\)`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			target := filepath.Join("..", m[1])
			_, err := os.Stat(target)
			require.NoError(t, err, "link of %s", file)
			if m[2] != "" {
				require.Contains(t, anchors(t, target), m[2], "link of %s to %s", file, m[1])
			}
		}
	}
}

// anchors returns the names that GitHub gives to the headings of a document.
func anchors(t *testing.T, path string) []string {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	left := regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	var all []string
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(text), -1) {
		all = append(all, strings.ReplaceAll(left.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return all
}
