package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/flexlvm/flexlvm/internal/overview"
)

func volumesCommand(s *session) *cobra.Command {
	var o output
	var filter overview.Filter
	cmd := &cobra.Command{
		Use:   "volumes",
		Short: "List volumes with claim, pod, state, last use and position in the eviction order",
		Long: `volumes lists the volumes of all namespaces, or of --namespace. Of released volumes it shows those
that the nodes report: the last that were released, and the next that are evicted. Of orphans, which
have no PersistentVolume and were never released, it shows the first 50 of each node. CLAIM is the
claim of a volume, also if it was deleted. EVICTION is the position of a released volume in the
eviction order of its pool, or why it is not evicted: TooYoung (released less than --min-age ago),
InUse, Wanted (a PersistentVolume names it), Problem, Removing, or Retained.`,
		Example: `  kubectl flexlvm volumes --node node-1
  kubectl flexlvm volumes -n shop --pvc data -o wide`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			filter.Namespace = s.overrides.Context.Namespace
			c, err := s.client()
			if err != nil {
				return err
			}
			var objects overview.Objects
			if objects.Storages, err = nodeStorages(cmd.Context(), c); err != nil {
				return err
			}
			if filter.Node != "" {
				if _, err := reportOf(objects.Storages, filter.Node); err != nil {
					return err
				}
			}
			if objects.Volumes, err = persistentVolumes(cmd.Context(), c); err != nil {
				return err
			}
			if objects.Pods, err = pods(cmd.Context(), c, filter.Namespace); err != nil {
				return err
			}
			volumes := overview.VolumesOf(objects, filter)
			return o.print(cmd.OutOrStdout(), volumes, func(to io.Writer) {
				if len(volumes) == 0 {
					fmt.Fprintln(to, none(filter))
					return
				}
				printVolumes(to, volumes, o.wide(), time.Now())
			})
		},
	}
	outputFlag(cmd, &o)
	cmd.Flags().StringVar(&filter.Node, "node", "", "show only volumes on this node")
	cmd.Flags().StringVar(&filter.Claim, "pvc", "", "show only volumes of claims of this name, including deleted claims")
	return cmd
}

// none returns the message for an empty result, with the filter that was used.
func none(f overview.Filter) string {
	out := "no volumes"
	for _, part := range []struct{ what, name string }{{"of claim", f.Claim}, {"in namespace", f.Namespace}, {"on node", f.Node}} {
		if part.name != "" {
			out += " " + part.what + " " + part.name
		}
	}
	return out
}

func printVolumes(to io.Writer, volumes []overview.Volume, wide bool, now time.Time) {
	head := []string{"NODE", "POOL", "NAMESPACE", "CLAIM", "POD", "SIZE", "STATE", "LAST-USED", "EVICTION"}
	if wide {
		head = append(head, "RELEASED", "VOLUME")
	}
	table := [][]string{head}
	for _, v := range volumes {
		eviction := orDash(v.Kept)
		if v.EvictionOrder > 0 {
			eviction = fmt.Sprint(v.EvictionOrder)
		}
		row := []string{
			v.Node, orDash(v.Pool), orDash(v.Namespace), orDash(v.Claim), orDash(strings.Join(v.Pods, ",")),
			v.Size.String(), v.State, ago(v.LastUsed, now), eviction,
		}
		if wide {
			row = append(row, ago(v.Released, now), v.Name)
		}
		table = append(table, row)
	}
	printTable(to, table)
}
