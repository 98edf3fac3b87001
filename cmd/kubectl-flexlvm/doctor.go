package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/flexlvm/flexlvm/internal/overview"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// errUnfit sets the exit code; the findings have the details.
var errUnfit = errors.New("some nodes cannot serve volumes: see the lines marked FAIL")

// errNoReport sets the exit code if no node was examined: nothing shows that any can serve volumes.
var errNoReport = errors.New(noReport)

func doctorCommand(s *session) *cobra.Command {
	var o output
	var node string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Show the problems that the node daemons have found, and what to do",
		Long: `doctor shows the problems of the nodes and what to do about them, worst first: the findings of
the checks of flexlvm doctor, which the node daemons run every ten minutes, and other problems
that they report. The exit code is 1 if anything is FAIL, or if no node has reported.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			c, err := s.client()
			if err != nil {
				return err
			}
			reports, err := nodeStorages(cmd.Context(), c)
			if err != nil {
				return err
			}
			if node != "" {
				if reports, err = reportOf(reports, node); err != nil {
					return err
				}
			}
			now := time.Now()
			found := overview.ExaminationsOf(reports, now)
			return o.printExaminations(cmd.OutOrStdout(), found, now)
		},
	}
	outputFlag(cmd, &o)
	cmd.Flags().StringVar(&node, "node", "", "show only this node")
	return cmd
}

// printExaminations prints the findings, and returns an error that sets the exit code.
func (o output) printExaminations(out io.Writer, found []overview.Examination, now time.Time) error {
	err := o.print(out, found, func(to io.Writer) {
		if len(found) > 0 {
			printExaminations(to, found, now)
		}
	})
	switch {
	case err != nil:
		return err
	case len(found) == 0:
		return errNoReport
	case found[0].Worst() == overview.LevelFail:
		return errUnfit
	}
	return nil
}

func printExaminations(to io.Writer, all []overview.Examination, now time.Time) {
	fmt.Fprintln(to, overview.Examined(all))
	for i := range all {
		e := &all[i]
		if len(e.Found) == 0 {
			continue
		}
		fmt.Fprintf(to, "\n%s (%s, %s ago)\n", e.Node, volume.Pluralize(e.Made, "check", "checks"), ago(e.Checked, now))
		for _, f := range e.Found {
			fmt.Fprintf(to, "  %-4s  %s: %s\n", f.Level, f.Check, f.Detail)
			if f.Do != "" {
				fmt.Fprintf(to, "        → %s\n", f.Do)
			}
		}
	}
}
