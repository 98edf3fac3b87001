package provision_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/yaml"

	"github.com/flexlvm/flexlvm/internal/provision"
	"github.com/flexlvm/flexlvm/internal/pv"
)

var (
	codeSpan  = regexp.MustCompile("`([^`]+)`")
	parameted = regexp.MustCompile(`^([A-Za-z./-]+):( .+)?$`)
)

// docs/from-others.md says of everything what it is here, and names no parameter, field or flag
// that there is not.
func TestWhatOthersHaveIsHere(t *testing.T) {
	root := filepath.Join("..", "..")
	page := read(t, root, "docs", "from-others.md")
	fields := []string{"provisioner", "volumeBindingMode", "reclaimPolicy", "allowVolumeExpansion", "volumeMode"}
	known := append(strings.Split(known, ", "), fields...)
	flags := sources(t, root)
	rows := 0
	for line := range strings.Lines(page) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if !strings.HasPrefix(line, "| ") || strings.HasSuffix(strings.TrimSpace(cells[2]), "here") && !strings.Contains(line, "`") {
			continue
		}
		rows++
		require.Len(t, cells, 4, line)
		here := strings.TrimSpace(cells[2])
		require.NotEmpty(t, here, line)
		for _, span := range codeSpan.FindAllStringSubmatch(here, -1) {
			if m := parameted.FindStringSubmatch(span[1]); m != nil && m[2] != "" {
				require.Contains(t, known, m[1], line)
			}
			if flag, is := strings.CutPrefix(span[1], "--"); is {
				require.Contains(t, flags, `"`+flag+`"`, line)
			}
		}
	}
	require.Greater(t, rows, 80)
}

// sources are those of the programs, and of the flags that they share.
func sources(t *testing.T, root string) string {
	t.Helper()
	var all strings.Builder
	for _, pattern := range []string{"cmd/*/*.go", "internal/serve/*.go"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") {
				all.WriteString(read(t, file))
			}
		}
	}
	return all.String()
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(path...))
	require.NoError(t, err)
	return string(content)
}

// The page has a link to each example, and their classes are taken as they are: those of
// flexlvm, and those of volumes that are there already.
func TestExamplesForUsersOfOthers(t *testing.T) {
	root := filepath.Join("..", "..")
	page := read(t, root, "docs", "from-others.md")
	files, err := filepath.Glob(filepath.Join(root, "examples", "from-others", "*.yaml"))
	require.NoError(t, err)
	var linked []string
	for _, m := range regexp.MustCompile(`\]\(\.\./examples/from-others/([a-z0-9-]+\.yaml)\)`).FindAllStringSubmatch(page, -1) {
		linked = append(linked, m[1])
	}
	slices.Sort(linked)
	var there []string
	for _, file := range files {
		there = append(there, filepath.Base(file))
		for _, document := range strings.Split(read(t, file), "---\n") {
			var class storagev1.StorageClass
			if err := yaml.Unmarshal([]byte(document), &class); err != nil || class.Kind != "StorageClass" {
				continue
			}
			require.Equal(t, storagev1.VolumeBindingWaitForFirstConsumer, *class.VolumeBindingMode, file)
			if filepath.Base(file) == "static-provisioner-config.yaml" {
				require.Equal(t, "kubernetes.io/no-provisioner", class.Provisioner)
				require.Empty(t, class.Parameters)
				continue
			}
			require.Equal(t, pv.Provisioner, class.Provisioner, file)
			_, err := provision.ParseParameters(class.Parameters)
			require.NoError(t, err, file)
		}
	}
	require.Equal(t, there, slices.Compact(linked))
}
