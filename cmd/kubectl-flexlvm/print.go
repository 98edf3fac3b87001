package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/yaml"

	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const labelNode = pv.LabelNode

// An output is the format in which an answer is printed.
type output string

var outputs = []string{"table", "wide", "json", "yaml"}

// outputFlag adds the flag -o to a command.
func outputFlag(cmd *cobra.Command, o *output) {
	*o = "table"
	cmd.Flags().StringVarP((*string)(o), "output", "o", "table", "output format: "+strings.Join(outputs, ", "))
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputs, cobra.ShellCompDirectiveNoFileComp)) // fails only for a flag that does not exist
}

func (o output) check() error {
	if !slices.Contains(outputs, string(o)) {
		return fmt.Errorf("--output %q: give one of %s", o, strings.Join(outputs, ", "))
	}
	return nil
}

func (o output) wide() bool { return o == "wide" }

// print prints an answer as data, or with the function that prints it as a table.
func (o output) print(to io.Writer, answer any, table func(io.Writer)) error {
	switch o {
	case "json":
		content, err := json.MarshalIndent(answer, "", "  ")
		if err != nil {
			return fmt.Errorf("print: %w", err)
		}
		fmt.Fprintln(to, escaped(content))
	case "yaml":
		content, err := yaml.Marshal(answer)
		if err != nil {
			return fmt.Errorf("print: %w", err)
		}
		fmt.Fprint(to, string(content))
	default:
		table(controlFilter{to})
	}
	return nil
}

// escaped escapes control characters in JSON that encoding/json leaves alone and terminals would interpret: DEL
// and those from U+0080 on. They occur only in strings.
func escaped(content []byte) string {
	var out strings.Builder
	for _, r := range string(content) {
		if unicode.IsControl(r) && r >= 0x7f {
			fmt.Fprintf(&out, `\u%04x`, r)
			continue
		}
		out.WriteRune(r)
	}
	return out.String()
}

// controlFilter writes text without control characters that terminals would interpret, because messages repeat
// text from nodes, loaders and servers.
type controlFilter struct{ to io.Writer }

// Write implements io.Writer.
func (p controlFilter) Write(text []byte) (int, error) {
	if _, err := io.WriteString(p.to, replaceControl(string(text))); err != nil {
		return 0, err
	}
	return len(text), nil
}

// replaceControl replaces control characters other than newlines and tabs.
func replaceControl(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// printObjects prints objects as manifests.
func printObjects(to io.Writer, objects ...client.Object) error {
	kinds, err := scheme()
	if err != nil {
		return err
	}
	for _, object := range objects {
		kind, err := apiutil.GVKForObject(object, kinds)
		if err != nil {
			return fmt.Errorf("print: %w", err)
		}
		object.GetObjectKind().SetGroupVersionKind(kind)
		content, err := yaml.Marshal(object)
		if err != nil {
			return fmt.Errorf("print: %w", err)
		}
		if _, err := fmt.Fprintf(to, "---\n%s", content); err != nil {
			return err
		}
	}
	return nil
}

// printTable prints a table. The first row is the heading.
func printTable(to io.Writer, all [][]string) {
	w := tabwriter.NewWriter(to, 0, 0, 3, ' ', 0)
	for _, row := range all {
		fmt.Fprintln(w, strings.TrimRight(strings.Join(row, "\t"), "\t"))
	}
	_ = w.Flush() // the reader is gone
}

func share(part, whole volume.Bytes) string {
	if whole <= 0 {
		return "-"
	}
	return fmt.Sprintf("%d%%", volume.Percent(part, whole))
}

// ago returns how long ago a time was, as kubectl prints it.
func ago(t metav1.Time, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return duration.HumanDuration(now.Sub(t.Time))
}

func orDash(text string) string { return cmp.Or(text, "-") }
