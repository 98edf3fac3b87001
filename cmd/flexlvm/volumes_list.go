package main

import (
	"context"
	"io"
	"sort"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

type volumesListOptions struct {
	volumesOptions
	output format
}

func newVolumesList(g *global) *cobra.Command {
	o := volumesListOptions{volumesOptions: volumesOptions{global: g}}
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the volumes of this node",
		Long: `List the volumes of this node.

SIZE is what the user may write, to the byte; DEVICE is the space that the volume takes
from its group. RELEASED is when the volume was released; RECLAIM and WIPE show how a
released volume is removed. NOTE shows problems that need attention.`,
		Example: `  flexlvm volumes list
  flexlvm volumes list --group fast -o json`,
		Args: cobra.NoArgs,
		RunE: o.run,
	}
	cmd.Flags().StringVarP(&o.group, "group", "g", "", "only this volume group (default: all)")
	o.output.addFlag(cmd)
	return cmd
}

func (o *volumesListOptions) run(cmd *cobra.Command, _ []string) error {
	return o.onNode(cmd, func(ctx context.Context, e engine) error {
		list, err := o.list(ctx, e)
		if err != nil {
			return err
		}
		return printVolumes(cmd.OutOrStdout(), list, o.output)
	})
}

// printVolumes prints a list, sorted by group and name.
func printVolumes(w io.Writer, list []inventory.Volume, f format) error {
	sort.Slice(list, func(i, j int) bool {
		if list[i].Group != list[j].Group {
			return list[i].Group < list[j].Group
		}
		return list[i].Name < list[j].Name
	})
	if f == asJSON {
		return printJSON(w, list)
	}
	rows := make([][]string, 0, len(list))
	for _, v := range list {
		released, reclaim, wipe := disposal(v)
		rows = append(rows, []string{
			string(v.Group), string(v.Name), dash(string(v.State)), size(v.Size), size(v.Allocated),
			dash(v.Namespace), dash(string(v.Kind)), stamp(v.LastUsed), use(v), released, reclaim, wipe, dash(v.Problem),
		})
	}
	return printTable(w, strings.Fields("GROUP NAME STATE SIZE DEVICE NAMESPACE KIND LAST-USED IN-USE RELEASED RECLAIM WIPE NOTE"), rows)
}

// disposal returns when a volume was released and how it is reclaimed. For a volume in use these are not set
// yet: its PersistentVolume has them.
func disposal(v inventory.Volume) (released, reclaim, wipe string) {
	switch v.State {
	case volume.Unreferenced, volume.Retained, volume.Doomed:
		return stamp(v.Released), dash(string(v.Reclaim)), dash(string(v.Wipe))
	}
	return "-", "-", "-"
}

// size formats a size without a space, so that the columns of a table stay separate.
func size(b volume.Bytes) string {
	if b == 0 {
		return "-"
	}
	return strings.ReplaceAll(b.String(), " ", "")
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

// use returns how the volume is in use: mounted here, or its device open in another mount namespace.
func use(v inventory.Volume) string {
	switch {
	case len(v.Mounts) > 0:
		return "mounted"
	case v.Open:
		return "open"
	}
	return "no"
}
