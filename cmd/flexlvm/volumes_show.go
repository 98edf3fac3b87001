package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

type volumesShowOptions struct {
	volumesOptions
	output format
}

func newVolumesShow(g *global) *cobra.Command {
	o := volumesShowOptions{volumesOptions: volumesOptions{global: g}}
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show all details of a volume",
		Long: `Show all details of a volume that this node knows. NAME is the name of its
PersistentVolume or of its dataset.`,
		Example: `  flexlvm volumes show pvc-6e0bf2d2-3f6d-4b0e-9a55-0b9a8a3f7c11
  flexlvm volumes show imagenet --group fast -o json`,
		Args: oneVolume,
		RunE: o.run,
	}
	o.addGroup(cmd)
	o.output.addFlag(cmd)
	return cmd
}

func (o *volumesShowOptions) run(cmd *cobra.Command, args []string) error {
	return o.onNode(cmd, func(ctx context.Context, e engine) error {
		v, err := o.find(ctx, e, args[0])
		if err != nil {
			return err
		}
		return printVolume(cmd.OutOrStdout(), v, o.output)
	})
}

func printVolume(w io.Writer, v inventory.Volume, f format) error {
	if f == asJSON {
		return printJSON(w, v)
	}
	released, reclaim, wipe := disposal(v)
	for _, line := range [][2]string{
		{"Name", string(v.Name)},
		{"Group", string(v.Group)},
		{"Group UUID", v.GroupUUID},
		{"Volume UUID", v.UUID},
		{"State", dash(describeState(v))},
		{"Size", exact(v.Size)},
		{"Device size", exact(v.Allocated)},
		{"Layout", layout(v)},
		{"Namespace", dash(v.Namespace)},
		{"Cluster", dash(v.Cluster)},
		{"Kind", dash(string(v.Kind))},
		{"File system", dash(v.FS)},
		{"File system type", fsType(v)},
		{"Encrypted", yes(v.Encrypted)},
		{"Created", stamp(v.Created)},
		{"Last used", stamp(v.LastUsed)},
		{"Last trimmed", stamp(v.LastTrimmed)},
		{"Released", released},
		{"Reclaim", reclaim},
		{"Wipe", wipe},
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

// describeState returns the state of a volume, and that it is incomplete if it was never finished.
func describeState(v inventory.Volume) string {
	switch {
	case v.CloneOfFS != "":
		return string(v.State) + ", incomplete copy of file system " + v.CloneOfFS
	case v.PartlyZeroed:
		return string(v.State) + ", not completely zeroed"
	}
	return string(v.State)
}

// layout describes how the volume is laid out on the devices of its group.
func layout(v inventory.Volume) string {
	switch v.Layout {
	case volume.Striped:
		return fmt.Sprintf("striped over %d devices, stripe size %d KiB", v.Stripes, v.StripeKiB)
	case volume.Raid1:
		return fmt.Sprintf("raid1, %d copies, %s %% in sync", v.Devices(), dash(v.SyncPercent))
	case volume.Thin:
		return fmt.Sprintf("thin, in pool %s, takes at most %s", v.ThinPool, v.AllocatedWhenFull)
	case volume.Directory:
		return fmt.Sprintf("directory, in pool %s", v.DirectoryPool)
	}
	return dash(string(v.Layout))
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

// fsType returns the type of a volume's file system. It is not known for a volume whose tags cannot be parsed.
func fsType(v inventory.Volume) string {
	if v.FS == "" {
		return dash("")
	}
	return v.FSType.String()
}
