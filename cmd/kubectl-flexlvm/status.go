package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/overview"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// maxNodes is how many nodes are shown unless all are requested; they fit on a screen.
const maxNodes = 12

func statusCommand(s *session) *cobra.Command {
	var o output
	var all bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show nodes and pools, worst first, with their problems and what to do",
		Args:  noArguments,
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
			now := time.Now()
			status := overview.StatusOf(reports, now)
			return o.print(cmd.OutOrStdout(), status, func(to io.Writer) { printStatus(to, status, all, o.wide(), now) })
		},
	}
	outputFlag(cmd, &o)
	cmd.Flags().BoolVar(&all, "all", false, fmt.Sprintf("show all nodes instead of the %d worst", maxNodes))
	return cmd
}

const noReport = "no node has reported; check the node daemons with kubectl get pods -n flexlvm-system -l app.kubernetes.io/name=flexlvm-gc"

// printReported prints a message if no node has reported, and returns whether any has.
func printReported(to io.Writer, reports []flexlvmv1.NodeStorage) bool {
	if len(reports) == 0 {
		fmt.Fprintln(to, noReport)
	}
	return len(reports) > 0
}

func printStatus(to io.Writer, s overview.Status, all, wide bool, now time.Time) {
	if len(s.Nodes) == 0 {
		fmt.Fprintln(to, noReport)
		return
	}
	fmt.Fprintf(to, "%s with %s: %s in use, %s reclaimable, %s free, %s promised. %s attention.\n\n",
		volume.Pluralize(len(s.Nodes), "node", "nodes"), s.Total.Size, share(s.Total.InUse, s.Total.Size), share(s.Total.Reclaimable, s.Total.Size),
		share(s.Total.Free, s.Total.Size), s.Total.Promised, volume.Pluralize(s.Ailing, "needs", "need"))
	shown := s.Nodes
	if !all {
		shown = shown[:min(len(shown), maxNodes)]
	}
	head := []string{"NODE", "SIZE", "IN-USE", "RECLAIMABLE", "FREE", "PROMISED", "SEEN"}
	if wide {
		head = append(head, "VOLUMES", "VERSION")
	}
	table := [][]string{head}
	for i := range shown {
		table = append(table, nodeRows(&shown[i], wide, now)...)
	}
	printTable(to, table)
	for i := range shown {
		for _, p := range shown[i].Problems {
			where := shown[i].Name
			if p.Pool != "" {
				where += " " + p.Pool
			}
			fmt.Fprintf(to, "\n%s %s: %s\n  → %s\n", p.Severity, where, p.Message, p.Next)
		}
	}
	if left := len(s.Nodes) - len(shown); left > 0 {
		fmt.Fprintf(to, "\n%s, none worse than these; --all shows them\n", volume.Pluralize(left, "more node", "more nodes"))
	}
}

// nodeRows returns the rows of a node and, below it, of its pools.
func nodeRows(n *overview.Node, wide bool, now time.Time) [][]string {
	name := n.Name
	if len(n.Problems) > 0 {
		name += " (" + string(n.Problems[0].Severity) + ")"
	}
	row := []string{name, "", "", "", "", "", ago(n.Seen, now)}
	if wide {
		row = append(row, fmt.Sprint(n.Volumes), orDash(n.Version))
	}
	out := [][]string{row}
	for i, p := range n.Pools {
		branch := "├─ "
		if i == len(n.Pools)-1 {
			branch = "└─ "
		}
		out = append(out, []string{branch + p.Name, p.Size.String(), p.InUse.String() + " " + share(p.InUse, p.Size), p.Reclaimable.String(), p.Free.String(), p.Promised.String()})
	}
	return out
}
