package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func newVolumes(g *global) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "volumes",
		Short: "Inspect, restore, retain, forget, adopt and disown the volumes of this node",
		Long: `Inspect the volumes of this node by their LVM tags, restore volumes whose claim was
deleted by mistake, and let volumes be evicted that nobody needs. Adopt logical volumes
that were created by hand, and disown them again. The API server is not contacted.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		newVolumesList(g),
		newVolumesShow(g),
		newVolumesUndelete(g),
		newVolumesForget(g),
		newVolumesRetain(g),
		newVolumesAdopt(g),
		newVolumesDisown(g),
	)
	return cmd
}

// volumesOptions are the options of all volumes commands.
type volumesOptions struct {
	global *global
	group  string
}

// addGroup adds the --group flag of commands that act on one volume.
func (o *volumesOptions) addGroup(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.group, "group", "g", "", "the volume group, if several have a volume of that name")
}

// An engine implements these commands on the node.
type engine interface {
	lister
	SetState(ctx context.Context, g volume.Group, n volume.Name, to volume.State) (inventory.Volume, error)
	adopter
	Disown(ctx context.Context, g volume.Group, n volume.Name) error
}

// An adopter turns logical volumes that were created by hand into flexlvm volumes.
type adopter interface {
	PlanAdoption(ctx context.Context, a node.Adoption) (inventory.Volume, error)
	Adopt(ctx context.Context, a node.Adoption) (inventory.Volume, error)
}

// A lister returns the volumes of this node.
type lister interface {
	List(ctx context.Context) ([]inventory.Volume, error)
	UnseenGroupsOf(ctx context.Context, n volume.Name) ([]volume.Group, error)
}

// onNode runs a command with this node's engine.
func (o *volumesOptions) onNode(cmd *cobra.Command, do func(ctx context.Context, e engine) error) error {
	return o.onNodeFor(cmd, commandTimeout, do)
}

// change is onNode for commands that change what the node daemon reports.
func (o *volumesOptions) change(cmd *cobra.Command, do func(ctx context.Context, e engine) error) error {
	err := o.onNode(cmd, do)
	if err == nil {
		_ = node.WakeDaemon(node.DefaultStateDir) // best effort: otherwise it is reported within a minute
	}
	return err
}

// onNodeFor is onNode with another timeout.
func (o *volumesOptions) onNodeFor(cmd *cobra.Command, timeout time.Duration, do func(ctx context.Context, e engine) error) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
	defer cancel()
	e, err := node.OnHost(o.global.logger(cmd.ErrOrStderr()))
	if err != nil {
		return err
	}
	return do(ctx, e)
}

// list returns the volumes of the group in --group, or of all groups.
func (o *volumesOptions) list(ctx context.Context, l lister) ([]inventory.Volume, error) {
	if o.group != "" {
		if _, err := volume.ParseGroup("--group", o.group); err != nil {
			return nil, err
		}
	}
	all, err := l.List(ctx)
	if err != nil {
		return nil, adviseRoot(err)
	}
	wanted := make([]inventory.Volume, 0, len(all))
	for _, v := range all {
		if o.group == "" || v.Group == volume.Group(o.group) {
			wanted = append(wanted, v)
		}
	}
	return wanted, nil
}

// find returns the only volume of a name, which may be GROUP/NAME.
func (o *volumesOptions) find(ctx context.Context, l lister, name string) (inventory.Volume, error) {
	in := *o
	if group, rest, ok := strings.Cut(strings.TrimPrefix(name, "/dev/"), "/"); ok {
		if o.group != "" && o.group != group {
			return inventory.Volume{}, &volume.FieldError{Field: "--group", Value: o.group, Reason: fmt.Sprintf("is not the group of %s; leave it out", name)}
		}
		in.group, name = group, rest
	}
	list, err := in.list(ctx, l)
	if err != nil {
		return inventory.Volume{}, err
	}
	v, err := pick(list, name)
	if errors.Is(err, errNotHere) {
		err = in.explainMissing(ctx, l, name, err)
	}
	return v, err
}

// errNotHere: no volume has the name.
var errNotHere = errors.New("no flexlvm volume is called")

// explainMissing returns the error for a volume that is not found. If it was in a volume group that LVM does not show
// now, it may be intact.
func (o *volumesOptions) explainMissing(ctx context.Context, l lister, name string, err error) error {
	n, nameErr := volume.ParseName("NAME", name)
	if nameErr != nil {
		return err
	}
	unseen, failed := l.UnseenGroupsOf(ctx, n)
	if failed != nil {
		return fmt.Errorf("%w, unless it is in a volume group that LVM does not show now, which could not be determined: %w", err, adviseRoot(failed))
	}
	for _, g := range unseen {
		if o.group == "" || o.group == string(g) {
			return fmt.Errorf("%w %q, but this node has had it in volume group %s, which LVM does not show now: bring its disks back (`flexlvm doctor --group %[3]s` shows whether LVM's devices file hides them)", errNotHere, name, g)
		}
	}
	return err
}

// oneVolume checks the arguments of commands that act on one volume.
func oneVolume(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("name one volume (got %d names); `flexlvm volumes list` shows all volumes", len(args))
	}
	if args[0] == "" {
		return &volume.FieldError{Field: "NAME", Reason: "is empty; `flexlvm volumes list` shows all volumes"}
	}
	if group, _, named := strings.Cut(args[0], "/"); named && group == "" {
		return &volume.FieldError{Field: "NAME", Value: args[0], Reason: "has no volume group before the slash"}
	}
	if f := cmd.Flags().Lookup("group"); f.Changed && f.Value.String() == "" {
		return &volume.FieldError{Field: "--group", Reason: "is empty; name the volume group, or leave the flag out"}
	}
	return nil
}

// pick returns the only volume of a name: the one that has the name now, or else the one that had it before its
// removal started.
func pick(list []inventory.Volume, name string) (inventory.Volume, error) {
	found := named(list, func(v inventory.Volume) bool { return string(v.Name) == name })
	if len(found) == 0 {
		found = named(list, func(v inventory.Volume) bool { return string(v.Name.Undoomed()) == name })
	}
	switch len(found) {
	case 0:
		for _, v := range list {
			if v.DirectoryPool == v.Name && v.Problem != "" { // a pool whose content cannot be read
				return inventory.Volume{}, fmt.Errorf("found no flexlvm volume %q, but: %s", name, v.Problem)
			}
		}
		return inventory.Volume{}, fmt.Errorf("%w %q; `flexlvm volumes list` shows all volumes of this node. The volume may be on another node; if it was evicted, it is permanently lost", errNotHere, name)
	case 1:
		return found[0], nil
	}
	names := make([]string, 0, len(found))
	for _, v := range found {
		names = append(names, v.FullName())
	}
	return inventory.Volume{}, fmt.Errorf("several volumes are called %q: %s; choose one with --group", name, strings.Join(names, ", "))
}

func named(list []inventory.Volume, match func(inventory.Volume) bool) []inventory.Volume {
	var found []inventory.Volume
	for _, v := range list {
		if match(v) {
			found = append(found, v)
		}
	}
	return found
}
