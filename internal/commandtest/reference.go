// Package commandtest checks that docs/reference describes the commands and flags of the programs.
package commandtest

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/version"
)

var update = flag.Bool("update", false, "write docs/reference")

// Testing is what this package needs of a test.
type Testing interface {
	require.TestingT
	Helper()
}

// RequireReference requires that docs/reference/NAME.md, where NAME is the name of the program, describes
// the program's commands and flags. Tests of the packages in cmd/ call it.
func RequireReference(t Testing, root *cobra.Command) {
	t.Helper()
	file := filepath.Join("../../docs/reference", root.Name()+".md")
	text := reference(root)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), text, "`make reference` writes %s", file)
}

// reference returns the page of a program: a section for each command, in the order of the commands.
func reference(root *cobra.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n<!-- Written by `make reference` from the program itself: change it there. -->\n\n", root.Name())
	describe(&b, root)
	return strings.TrimSpace(b.String()) + "\n"
}

// describe writes the descriptions and flags of a command and its subcommands.
func describe(b *strings.Builder, c *cobra.Command) {
	if c.Hidden || c.Deprecated != "" || c.Name() == "help" || c.Name() == "completion" {
		return
	}
	if c.HasParent() {
		fmt.Fprintf(b, "## %s\n\n", strings.TrimPrefix(c.CommandPath(), c.Root().CommandPath()+" "))
	}
	text := c.Long
	if text == "" {
		text = c.Short + "."
	}
	fmt.Fprintf(b, "```text\n%s\n```\n\n", strings.TrimSpace(text))
	if c.Runnable() {
		fmt.Fprintf(b, "```text\n%s\n```\n\n", strings.TrimSpace(c.UseLine()+"\n\n"+c.Example))
	}
	describeFlags(b, c.NonInheritedFlags())
	for _, below := range c.Commands() {
		describe(b, below)
	}
}

// describeFlags writes a table of flags, or nothing if there are none.
func describeFlags(b *strings.Builder, flags *pflag.FlagSet) {
	first := true
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Deprecated != "" || f.Name == "help" || f.Name == "version" {
			return
		}
		if first {
			b.WriteString("| flag | default | meaning |\n|---|---|---|\n")
			first = false
		}
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		preset := ""
		if f.DefValue != "" && f.DefValue != "[]" {
			preset = "`" + strings.ReplaceAll(f.DefValue, ":"+version.String, ":VERSION") + "`" // tests have no version
		}
		fmt.Fprintf(b, "| %s | %s | %s |\n", name, preset, strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;").Replace(f.Usage))
	})
	if !first {
		b.WriteString("\n")
	}
}
