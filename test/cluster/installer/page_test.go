package installer_test

// The pages whose commands TestInstaller runs. Checking that none is missing needs no cluster.

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/vm"
)

const (
	readme = "README.md"
	guide  = "docs/install.md"
)

// elsewhere lists the commands that TestInstaller does not run, with the reason, by page.
var elsewhere = map[string]map[string]string{
	readme: {
		"make demo":                     "it makes a cluster of its own",
		"make test":                     "it is what runs this",
		"make up NODES=2":               "it makes a cluster of its own; test/cluster calls what it calls",
		"make load-image":               "it is about that cluster; test/cluster calls what it calls",
		"make kubectl ARGS='get nodes'": "it is about that cluster",
		"make down":                     "it is about that cluster",
		"flexlvm doctor":                "the guide's is run",
		"flexlvm vg create":             "test/cluster does",
		"kubectl flexlvm":               "the provisioner's suite runs its commands",
		"kubectl flexlvm ui":            "test/cluster and test/cluster/page do",
	},
	guide: {
		"make test-oldest": "it runs this on another Kubernetes",
		"make push REGISTRY=registry.example.org/storage": "tools/release runs it, with a registry of its own, in the campaign",
		"make push":             "the command above",
		"make image ARCH=arm64": "tools/release runs it in the campaign",
		"make image && kind load image-archive bin/image.tar": "nothing but this cluster is here",
		"make image && minikube image load bin/image.tar":     "nothing but this cluster is here",
		"k3s ctr images import image.tar":                     "nothing but this cluster is here",
		"flexlvm volumes undelete":                            "test/cluster/gc does",
		"kubectl flexlvm undelete":                            "test/cluster/gc does",
		"flexlvm volumes forget NAME":                         "test/cluster/gc does",
		"kubectl delete node NODE":                            "test/cluster/provisioner does, and this is the only node",
	},
}

var (
	// fence matches a block of code. Blocks of YAML or drawings contain no commands.
	fence = regexp.MustCompile("(?ms)^ *```(\\w*)\n(.*?)^ *```")
	// inline matches a command within a sentence or a table.
	inline  = regexp.MustCompile("`((?:kubectl|make|helm|ctr|k3s|flexlvm) [^`]+)`")
	comment = regexp.MustCompile(`(^|\s+)#\s.*$`)
	program = regexp.MustCompile(`^(\$ )?(kubectl|make|helm|ctr|k3s|flexlvm|lvremove|rm|ln) `)
)

// commandsOf returns the distinct commands of a page in order.
func commandsOf(t *testing.T, source, page string) (out []string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(source, page))
	require.NoError(t, err)
	for _, block := range fence.FindAllStringSubmatch(string(content), -1) {
		if block[1] == "" || block[1] == "sh" {
			out = append(out, commandsIn(block[2])...)
		}
	}
	for _, found := range inline.FindAllStringSubmatch(string(content), -1) {
		out = append(out, found[1])
	}
	require.NotEmpty(t, out)
	slices.Sort(out)
	return slices.Compact(out)
}

// commandsIn returns the commands of a block without their comments. A command with an open quote
// continues on the next line.
func commandsIn(block string) (out []string) {
	open := false
	for line := range strings.Lines(block) {
		line = comment.ReplaceAllString(strings.TrimSpace(line), "")
		switch {
		case open:
			out[len(out)-1] += "\n" + line
		case program.MatchString(line):
			out = append(out, strings.TrimPrefix(line, "$ "))
		default:
			continue // a command's output, or a drawing
		}
		open = open != (strings.Count(line, "'")%2 == 1)
	}
	return out
}

// neverRun returns the page's commands that are neither run nor listed in elsewhere, and the listed
// ones that are not on the page or are run.
func neverRun(page, ran []string, elsewhere map[string]string) (out []string) {
	for _, command := range page {
		mentioned := slices.ContainsFunc(ran, func(other string) bool { return strings.HasPrefix(other, command) })
		if !mentioned && elsewhere[command] == "" {
			out = append(out, fmt.Sprintf("%q is said, and no test runs it", command))
		}
	}
	for _, command := range slices.Sorted(maps.Keys(elsewhere)) {
		if !slices.Contains(page, command) || slices.Contains(ran, command) {
			out = append(out, fmt.Sprintf("%q is among those that are run elsewhere, and is not there or is run here", command))
		}
	}
	return out
}

func TestEveryCommandIsRunSomewhere(t *testing.T) {
	root, err := vm.SourceDir()
	require.NoError(t, err)
	calls := called(t)
	for _, page := range []string{readme, guide} {
		says := commandsOf(t, root, page)
		require.Empty(t, neverRun(says, calls[page], elsewhere[page]), page)
		for _, command := range calls[page] {
			require.Contains(t, says, command, "TestInstaller runs it, and %s does not say it", page)
		}
	}
}

// A command that is never run is found, and so is one that is wrongly listed in elsewhere.
func TestNeverRun(t *testing.T) {
	page := []string{"kubectl get pods", "kubectl get pods -A", "make demo"}
	require.Empty(t, neverRun(page, page[1:2], map[string]string{"make demo": "a cluster of its own"}))
	require.Len(t, neverRun(page, page[:1], nil), 2)
	require.Len(t, neverRun(page, page, map[string]string{"make demo": "it is run here"}), 1)
	require.Len(t, neverRun(page, page, map[string]string{"make test": "it is not there"}), 1)
}

// called returns the commands that the test runs, by page: its sources contain them verbatim.
func called(t *testing.T) map[string][]string {
	t.Helper()
	pages := map[string]string{"readme": readme, "install": guide}
	calls := map[string][]string{}
	for _, file := range []string{"installer_test.go", "uninstall_test.go", "helm_test.go"} {
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			call, is := n.(*ast.CallExpr)
			if !is {
				return true
			}
			method, is := call.Fun.(*ast.SelectorExpr)
			if !is || !slices.Contains([]string{"run", "shown", "root"}, method.Sel.Name) {
				return true
			}
			of, is := method.X.(*ast.SelectorExpr)
			require.True(t, is && pages[of.Sel.Name] != "", "%s: call it on b.readme or b.install", set.Position(call.Pos()))
			literal, is := call.Args[1].(*ast.BasicLit)
			require.True(t, is, "%s: write the command out", set.Position(call.Pos()))
			command, err := strconv.Unquote(literal.Value)
			require.NoError(t, err)
			calls[pages[of.Sel.Name]] = append(calls[pages[of.Sel.Name]], command)
			return true
		})
	}
	return calls
}
