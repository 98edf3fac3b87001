package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/flexlvm/flexlvm/internal/loop"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/internal/volumegroup"
)

// byHand is the prefix of the names of declarations made by this command. No VolumeGroup has such a name.
const byHand = "vg-create:"

type vgLoopOptions struct {
	file     string
	size     string
	forTests bool
}

func (l *vgLoopOptions) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&l.file, "loop", "", "for trials and tests: create the group on this sparse file instead of devices")
	cmd.Flags().StringVar(&l.size, "size", "", "with --loop, the size of the loop device")
	cmd.Flags().BoolVar(&l.forTests, "for-tests", false, "with --loop, confirm that the group will hold no data that is needed")
}

// makeLoop creates the group on a file.
func (o *vgCreateOptions) makeLoop(cmd *cobra.Command, devices []string) error {
	d, err := o.declaration(cmd, devices)
	if err != nil {
		return err
	}
	ctx, cancel := withTimeout(cmd)
	defer cancel()
	engine, err := node.OnHost(o.global.logger(cmd.ErrOrStderr()))
	if err != nil {
		return err
	}
	out, device, err := engine.MakeLoopGroup(ctx, d)
	if err != nil {
		return adviseRoot(err)
	}
	if out.State != volumegroup.Made {
		text := out.Message
		for _, r := range out.Refused {
			text += fmt.Sprintf("; %s: %s", r.Path, r.Reason)
		}
		return errors.New(text)
	}
	_ = node.WakeDaemon(node.DefaultStateDir)
	return printLoop(cmd.OutOrStdout(), out, device)
}

func printLoop(w io.Writer, out volumegroup.Outcome, d loop.Device) error {
	verb, how := "created", "direct IO"
	if !out.Changed {
		verb = "found existing"
	}
	if !d.Direct {
		how = "buffered IO, because the file's file system does not support direct IO"
	}
	_, err := fmt.Fprintf(w, "%s volume group %s on %s: file %s, %s, %s\n", verb, out.Group, d.Device, d.Path, d.Size, how)
	return err
}

// declaration returns the declaration that an equivalent VolumeGroup with a loop device would have.
func (o *vgCreateOptions) declaration(cmd *cobra.Command, devices []string) (d volumegroup.Declaration, err error) {
	switch {
	case len(devices) > 0:
		return d, &volume.FieldError{Field: "--loop", Value: o.loop.file, Reason: fmt.Sprintf("creates the group on a file; leave out %s", strings.Join(devices, " "))}
	case o.dryRun:
		return d, &volume.FieldError{Field: "--dry-run", Reason: "cannot be combined with --loop, because there is nothing to check before the file exists; leave it out"}
	case cmd.Flags().Changed("metadata-size"):
		return d, &volume.FieldError{Field: "--metadata-size", Value: o.metadataSize, Reason: "cannot be combined with --loop, which uses 16MiB; leave it out"}
	}
	size, err := parseSize("--size", o.loop.size)
	if err != nil {
		return d, err
	}
	l := volumegroup.Loop{File: o.loop.file, Size: size, ForTests: o.loop.forTests}
	if err := l.Validate("--loop", "--size", "--for-tests"); err != nil {
		return d, err
	}
	group, err := volume.ParseGroup("--name", o.name)
	if err != nil {
		return d, err
	}
	pool, err := o.pool(group)
	if err != nil {
		return d, err
	}
	return volumegroup.Declaration{Name: byHand + o.name, Group: group, Loop: &l, ThinPool: pool.Name, ThinSize: pool.Size}, nil
}
