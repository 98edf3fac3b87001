package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// A format is the output format of a command.
type format string

const (
	asTable format = "table"
	asJSON  format = "json"
)

// String implements pflag.Value.
func (f *format) String() string { return string(*f) }

// Set implements pflag.Value.
func (f *format) Set(s string) error {
	switch v := format(s); v {
	case asTable, asJSON:
		*f = v
		return nil
	}
	return fmt.Errorf("give %s or %s", asTable, asJSON)
}

// Type implements pflag.Value; the help text shows it.
func (f *format) Type() string { return "table|json" }

func (f *format) addFlag(cmd *cobra.Command) {
	*f = asTable
	cmd.Flags().VarP(f, "output", "o", "output format")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{string(asTable), string(asJSON)}, cobra.ShellCompDirectiveNoFileComp))
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// printTable prints rows under their headings. Each row has one cell for each heading.
func printTable(w io.Writer, headings []string, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, row := range append([][]string{headings}, rows...) {
		if _, err := fmt.Fprintln(t, strings.Join(row, "\t")); err != nil {
			return err
		}
	}
	return t.Flush()
}

// dash returns "-" for an empty string, so that awk still finds all columns.
func dash(s string) string { return cmp.Or(s, "-") }
