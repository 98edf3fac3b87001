package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// literals calls f with each string literal of the programs' code and its position.
func literals(t *testing.T, f func(where token.Position, text string)) {
	t.Helper()
	set := token.NewFileSet()
	for _, folder := range []string{"api", "cmd", "internal"} {
		require.NoError(t, filepath.WalkDir(filepath.Join("..", folder), func(path string, _ os.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if literal, is := n.(*ast.BasicLit); is && literal.Kind == token.STRING {
					text, err := strconv.Unquote(literal.Value)
					require.NoError(t, err)
					f(set.Position(literal.Pos()), text)
				}
				return true
			})
			return nil
		}))
	}
}

// The reference lists every label, annotation and finalizer that the code knows, and no other.
func TestNamesAreInTheReference(t *testing.T) {
	content, err := os.ReadFile("reference/names.md")
	require.NoError(t, err)
	known := map[string]bool{}
	literals(t, func(where token.Position, text string) {
		for _, prefix := range []string{"flexlvm.io/", "nfs.flexlvm.io/"} {
			if name, is := strings.CutPrefix(text, prefix); is && name != "" && !strings.ContainsAny(name, " %") {
				known[text] = true
				require.True(t, strings.Contains(string(content), "`"+text+"`") || strings.HasSuffix(text, "-") && strings.Contains(string(content), "`"+text),
					"%s: reference/names.md does not have %s", where, text)
			}
		}
	})
	require.Greater(t, len(known), 50)
	for _, quoted := range strings.Split(string(content), "`") {
		if strings.HasPrefix(quoted, "flexlvm.io/") || strings.HasPrefix(quoted, "nfs.flexlvm.io/") {
			require.True(t, known[quoted] || known[strings.TrimSuffix(quoted, "HASH")], "the code does not know %s", quoted)
		}
	}
}

// The reference's list contains every program and every page of the reference.
func TestReferenceIsListed(t *testing.T) {
	list, err := os.ReadFile("reference/README.md")
	require.NoError(t, err)
	programs, err := os.ReadDir("../cmd")
	require.NoError(t, err)
	require.Greater(t, len(programs), 5)
	for _, p := range programs {
		require.Regexp(t, "\\["+p.Name()+`\.md\]|`+"`"+p.Name()+"`", string(list), "no page of %s", p.Name())
	}
	files, err := os.ReadDir("reference")
	require.NoError(t, err)
	require.Greater(t, len(files), 5)
	for _, f := range files {
		if f.Name() != "README.md" {
			require.Contains(t, string(list), "]("+f.Name()+")")
		}
	}
}
