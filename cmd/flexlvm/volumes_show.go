package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

type volumesShowOptions struct {
	global *global
	group  string
	output format
}

func newVolumesShow(g *global) *cobra.Command {
	o := volumesShowOptions{global: g}
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show all that this node knows of one volume",
		Long: `Show all that this node knows of one volume. NAME is that of its PersistentVolume,
or of its dataset.`,
		Example: `  flexlvm volumes show pvc-6e0bf2d2-3f6d-4b0e-9a55-0b9a8a3f7c11
  flexlvm volumes show imagenet --group fast -o json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("name one volume (got %d names); `flexlvm volumes list` shows them all", len(args))
			}
			return nil
		},
		RunE: o.run,
	}
	cmd.Flags().StringVarP(&o.group, "group", "g", "", "the volume group, where several hold a volume of that name")
	o.output.addFlag(cmd)
	return cmd
}

func (o *volumesShowOptions) run(cmd *cobra.Command, args []string) error {
	ctx, cancel := bounded(cmd)
	defer cancel()
	engine, err := node.OnHost(o.global.logger(cmd.ErrOrStderr()))
	if err != nil {
		return err
	}
	list, err := listVolumes(ctx, engine, o.group)
	if err != nil {
		return asRoot(err)
	}
	v, err := pick(list, args[0])
	if err != nil {
		return err
	}
	return printVolume(cmd.OutOrStdout(), v, o.output)
}

// pick finds the one volume of a name, which may also be that which it bore
// before its removal began.
func pick(list []node.Volume, name string) (node.Volume, error) {
	var found []node.Volume
	for _, v := range list {
		if string(v.Name) == name || string(v.Name.Undoomed()) == name {
			found = append(found, v)
		}
	}
	switch len(found) {
	case 0:
		return node.Volume{}, fmt.Errorf("no volume of ours is called %q; `flexlvm volumes list` shows them all", name)
	case 1:
		return found[0], nil
	}
	places := make([]string, 0, len(found))
	for _, v := range found {
		places = append(places, string(v.Group)+"/"+string(v.Name))
	}
	return node.Volume{}, fmt.Errorf("several volumes are called %q: %s; choose one with --group, or by its whole name", name, strings.Join(places, ", "))
}

func printVolume(w io.Writer, v node.Volume, f format) error {
	if f == asJSON {
		return printJSON(w, v)
	}
	for _, line := range [][2]string{
		{"Name", string(v.Name)},
		{"Group", string(v.Group)},
		{"Group UUID", v.GroupUUID},
		{"Volume UUID", v.UUID},
		{"State", dash(string(v.State))},
		{"Size", exact(v.Size)},
		{"Device size", exact(v.Device)},
		{"Namespace", dash(v.Namespace)},
		{"Cluster", dash(v.Cluster)},
		{"Kind", dash(string(v.Kind))},
		{"File system", dash(v.FS)},
		{"Created", stamp(v.Created)},
		{"Last used", stamp(v.LastUsed)},
		{"Active", yes(v.Active)},
		{"Device open", yes(v.Open)},
		{"Mounted on", dash(strings.Join(v.Mounts, "\n                "))},
		{"Note", dash(v.Problem)},
	} {
		if _, err := fmt.Fprintf(w, "%-15s %s\n", line[0]+":", line[1]); err != nil {
			return err
		}
	}
	return nil
}

func exact(b volume.Bytes) string {
	if b == 0 {
		return "-"
	}
	return strconv.FormatInt(int64(b), 10) + " (" + b.String() + ")"
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
