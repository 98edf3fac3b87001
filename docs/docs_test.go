// Package docs_test checks the documents against the code and files that they describe.
package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// CONTRIBUTING explains every module that go.mod requires, and no other.
func TestDependenciesAreExplained(t *testing.T) {
	mod, err := os.ReadFile("../go.mod")
	require.NoError(t, err)
	var required []string
	for _, m := range regexp.MustCompile(`(?m)^\t(\S+) v\S+$`).FindAllSubmatch(mod, -1) {
		required = append(required, string(m[1]))
	}
	require.NotEmpty(t, required)

	text, err := os.ReadFile("../CONTRIBUTING.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(text), "| dependency |")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	var explained []string
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) > 1 {
			for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
				explained = append(explained, m[1])
			}
		}
	}
	slices.Sort(required)
	slices.Sort(explained)
	require.Equal(t, required, explained)
}

// Every decision is in the list.
func TestDecisionsAreListed(t *testing.T) {
	list, err := os.ReadFile("decisions/README.md")
	require.NoError(t, err)
	files, err := os.ReadDir("decisions")
	require.NoError(t, err)
	require.Greater(t, len(files), 1)
	for _, f := range files {
		if f.Name() != "README.md" {
			require.Contains(t, string(list), "]("+f.Name()+")")
		}
	}
}

// A longer file is split in two. Generated files are exempt.
func TestFilesAreShort(t *testing.T) {
	const most = 400
	var looked int
	require.NoError(t, filepath.WalkDir("..", func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != ".." && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasPrefix(d.Name(), "zz_generated") {
			return nil
		}
		looked++
		text, err := os.ReadFile(path)
		require.LessOrEqual(t, strings.Count(string(text), "\n"), most, "lines of %s", path)
		return err
	}))
	require.Greater(t, looked, 300)
}

// The files that design.md and CONTRIBUTING name exist, and are named with their folders: many packages have files of
// the same name.
func TestNamedFilesExist(t *testing.T) {
	path := regexp.MustCompile("`((?:api|cmd|internal|pkg|test|installer|examples|docs)/[a-z0-9_./-]+)`")
	file := regexp.MustCompile("`[a-z0-9_]+\\.go`")
	for _, document := range []string{"design.md", "../CONTRIBUTING.md"} {
		text, err := os.ReadFile(document)
		require.NoError(t, err)
		paths := path.FindAllStringSubmatch(string(text), -1)
		require.Greater(t, len(paths), 20, document)
		for _, m := range paths {
			_, err := os.Stat(filepath.Join("..", m[1]))
			require.NoError(t, err, "in %s", document)
		}
		require.Empty(t, file.FindAllString(string(text), -1), "name the folder of each file in %s", document)
	}
}

// The table of installed objects lists every object of the manifests.
func TestInstalledObjectsAreListed(t *testing.T) {
	text, err := os.ReadFile("install.md")
	require.NoError(t, err)
	object := regexp.MustCompile(`(?m)^kind: (CustomResourceDefinition|CSIDriver|DaemonSet|Deployment|Namespace|PodDisruptionBudget|ResourceQuota|StorageClass|ValidatingAdmissionPolicy)\nmetadata:\n(?:  .*\n)*?  name: (\S+)$`)
	kinds := map[string]int{}
	for _, folder := range []string{"base", "base/crd", "node", "gc"} {
		files, err := filepath.Glob("../installer/" + folder + "/*.yaml")
		require.NoError(t, err)
		for _, file := range files {
			manifest, err := os.ReadFile(file)
			require.NoError(t, err)
			for _, m := range object.FindAllStringSubmatch(string(manifest), -1) {
				kinds[m[1]]++
				require.True(t, strings.Contains(string(text), "`"+m[2]+"`"), "%s %s of %s", m[1], m[2], file)
			}
		}
	}
	require.Len(t, kinds, 9, "%v", kinds)
	require.Greater(t, kinds["ValidatingAdmissionPolicy"], 5)
}
