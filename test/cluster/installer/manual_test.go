//go:build cluster

package installer_test

import (
	"context"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A manual is a page of the documentation whose commands the test runs verbatim: each command that it
// runs must be on the page, and in the end each command of the page must have been run.
type manual struct {
	*bed
	page     string
	dir      string          // where its commands run, with the files that they name
	commands map[string]bool // whether each was run
	linked   bool            // whether the guide's link to the driver was created
}

func (b *bed) manual(t *testing.T, page, dir string) *manual {
	t.Helper()
	m := &manual{bed: b, page: page, dir: dir, commands: map[string]bool{}}
	for _, command := range commandsOf(t, b.source, page) {
		m.commands[command] = false
	}
	return m
}

// shown checks that the page has a command, and counts it as run.
func (m *manual) shown(t *testing.T, command string) {
	t.Helper()
	_, there := m.commands[command]
	require.True(t, there, "%s does not say %q; it says\n%s", m.page, command, strings.Join(slices.Sorted(maps.Keys(m.commands)), "\n"))
	m.commands[command] = true
}

// run runs a command of the page on a machine with kubectl, after replacing each placeholder by the
// value that follows it.
func (m *manual) run(t *testing.T, command string, placeholders ...string) string {
	t.Helper()
	m.shown(t, command)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	cmd := m.Command(ctx, "bash", "-euc", strings.NewReplacer(placeholders...).Replace(command))
	cmd.Dir = m.dir
	cmd.Env = append(os.Environ(), "PATH="+m.Dir()+":"+m.tools+":"+os.Getenv("PATH"), "KUBECONFIG="+m.AdminKubeconfig())
	began := time.Now()
	out, err := cmd.CombinedOutput()
	m.took(t, began, command)
	if err != nil {
		state, _ := m.Kubectl(t.Context(), "describe", "pods,pvc,nodestorages,volumegroups", "-A")
		require.NoError(t, err, "%s: %s\n%s", command, out, state)
	}
	return string(out)
}

func (m *manual) took(t *testing.T, began time.Time, command string) {
	t.Helper()
	t.Logf("%5.1fs %s", time.Since(began).Seconds(), command)
}

// root runs a command of the page as a person on the node does.
func (m *manual) root(t *testing.T, command string, placeholders ...string) string {
	t.Helper()
	m.shown(t, command)
	prepared := "export PATH=/usr/local/sbin:$PATH\ncd /root\n" // as Debian has it for root
	if !m.linked {
		prepared += "shopt -s expand_aliases\n" + alias + "\n"
	}
	m.linked = m.linked || strings.HasPrefix(command, "ln -s ")
	command = strings.NewReplacer(placeholders...).Replace(command)
	return m.onNode(t, "bash", "-euc", prepared+command)
}

// alias defines the driver's name on a node that does not have the guide's link to it yet.
const alias = "alias flexlvm=" + driver

// allRun checks that every command of the page was run, or is one that cannot run here.
func (m *manual) allRun(t *testing.T) {
	var ran []string
	for command, was := range m.commands {
		if was {
			ran = append(ran, command)
		}
	}
	require.Empty(t, neverRun(slices.Sorted(maps.Keys(m.commands)), ran, elsewhere[m.page]))
}
