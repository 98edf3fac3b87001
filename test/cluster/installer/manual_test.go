//go:build cluster

package installer_test

import (
	"context"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A manual is a page of the documentation whose commands the test runs, word for word: what
// it runs has to be there, and in the end all that is there has to have been run.
type manual struct {
	*bed
	page     string
	dir      string          // where its commands are run, with what they name
	commands map[string]bool // whether each was run
}

var (
	// fence is a block of code; one in YAML or of drawings is no command.
	fence = regexp.MustCompile("(?ms)^ *```(\\w*)\n(.*?)^ *```")
	// inline is a command within a sentence or a table.
	inline  = regexp.MustCompile("`((?:kubectl|make|helm|ctr|k3s|flexlvm) [^`]+)`")
	comment = regexp.MustCompile(`(^|\s+)#\s.*$`)
	program = regexp.MustCompile(`^(\$ )?(kubectl|make|helm|ctr|k3s|flexlvm|lvremove|rm|alias) `)
)

func (b *bed) manual(t *testing.T, page, dir string) *manual {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(b.source, page))
	require.NoError(t, err)
	m := &manual{bed: b, page: page, dir: dir, commands: map[string]bool{}}
	for _, block := range fence.FindAllStringSubmatch(string(content), -1) {
		if block[1] == "" || block[1] == "sh" {
			for _, command := range commandsOf(block[2]) {
				m.commands[command] = false
			}
		}
	}
	for _, found := range inline.FindAllStringSubmatch(string(content), -1) {
		m.commands[found[1]] = false
	}
	require.NotEmpty(t, m.commands)
	return m
}

// commandsOf are the commands of a block, without their comments. One goes on where a quote
// is open.
func commandsOf(block string) (out []string) {
	open := false
	for line := range strings.Lines(block) {
		line = comment.ReplaceAllString(strings.TrimSpace(line), "")
		switch {
		case open:
			out[len(out)-1] += "\n" + line
		case program.MatchString(line):
			out = append(out, strings.TrimPrefix(line, "$ "))
		default:
			continue // what a command prints, or a drawing
		}
		open = open != (strings.Count(line, "'")%2 == 1)
	}
	return out
}

// shown requires that the page has a command, and counts it as run.
func (m *manual) shown(t *testing.T, command string) {
	t.Helper()
	_, there := m.commands[command]
	require.True(t, there, "%s does not say %q; it says\n%s", m.page, command, strings.Join(slices.Sorted(maps.Keys(m.commands)), "\n"))
	m.commands[command] = true
}

// run runs a command of the page where a person has kubectl, after each placeholder was
// replaced by the value that follows it.
func (m *manual) run(t *testing.T, command string, placeholders ...string) string {
	t.Helper()
	m.shown(t, command)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := m.Command(ctx, "bash", "-euc", strings.NewReplacer(placeholders...).Replace(command))
	cmd.Dir = m.dir
	cmd.Env = append(os.Environ(), "PATH="+m.Dir()+":"+m.tools+":"+os.Getenv("PATH"), "KUBECONFIG="+m.AdminKubeconfig())
	out, err := cmd.CombinedOutput()
	if err != nil {
		state, _ := m.Kubectl(t.Context(), "describe", "pods,pvc,nodestorages,volumegroups", "-A")
		require.NoError(t, err, "%s: %s\n%s", command, out, state)
	}
	return string(out)
}

// make runs a command of the page in the checkout, on this machine.
func (m *manual) make(t *testing.T, command string) {
	t.Helper()
	m.shown(t, command)
	cmd := exec.CommandContext(t.Context(), "bash", "-euc", command)
	cmd.Dir = m.source
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s: %s", command, out)
}

// root runs a command of the page as a person on the node does.
func (m *manual) root(t *testing.T, command string, placeholders ...string) string {
	t.Helper()
	m.shown(t, command)
	command = strings.NewReplacer(placeholders...).Replace(command)
	return m.onNode(t, "bash", "-euc", "shopt -s expand_aliases\n"+alias+"\ncd /root\n"+command)
}

// alias gives people on a node the name of the driver.
const alias = "alias flexlvm=" + driver

// allRun requires that every command of the page was run, or is one of those that cannot be
// here, by their first words.
func (m *manual) allRun(t *testing.T, elsewhere map[string]string) {
	t.Helper()
	for command, ran := range m.commands {
		mentioned := false // the beginning alone of one that was run
		for other, was := range m.commands {
			mentioned = mentioned || was && strings.HasPrefix(other, command)
		}
		if !ran && !mentioned && elsewhere[command] == "" {
			t.Errorf("%s says %q, and no test runs it", m.page, command)
		}
	}
	for command := range elsewhere {
		if ran, there := m.commands[command]; !there || ran {
			t.Errorf("%q is among those of %s that cannot be run here, and is not there or was run", command, m.page)
		}
	}
}
