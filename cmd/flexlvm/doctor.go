package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/doctor"
	"github.com/flexlvm/flexlvm/internal/install"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

type doctorOptions struct {
	global    *global
	group     string
	pluginDir string
	output    format
}

func newDoctor(g *global) *cobra.Command {
	o := doctorOptions{global: g}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this node and show what to do",
		Long: `Check this node: kernel, host tools, volume group, LVM's metadata area and devices
file, directories, the driver as kubelet finds it, and volumes that were left
incomplete. Each line is OK, WARN or FAIL, with what to do about it.

It changes nothing. The exit code is 1 if anything is FAIL.`,
		Example: `  flexlvm doctor
  flexlvm doctor --group fast --plugin-dir /var/lib/kubelet/volumeplugins
  flexlvm doctor -o json`,
		Args: cobra.NoArgs,
		RunE: o.run,
	}
	cmd.Flags().StringVarP(&o.group, "group", "g", string(volume.DefaultGroup), "volume group of the volumes")
	cmd.Flags().StringVar(&o.pluginDir, "plugin-dir", install.DefaultPluginDir, "kubelet's --volume-plugin-dir")
	o.output.addFlag(cmd)
	return cmd
}

func (o *doctorOptions) run(cmd *cobra.Command, _ []string) error {
	group, err := volume.ParseGroup("--group", o.group)
	if err != nil {
		return err
	}
	place, err := install.At(o.pluginDir)
	if err != nil {
		return err
	}
	log := o.global.logger(cmd.ErrOrStderr())
	tools := command.New("", log)
	engine, err := node.New(node.Config{}, tools)
	if err != nil {
		return err
	}
	here := doctor.OnNode{Engine: engine, Programs: tools, Log: log, Place: place}
	ctx, cancel := withTimeout(cmd)
	defer cancel()
	return printFindings(cmd.OutOrStdout(), here.Doctor(group).Examine(ctx), o.output)
}

// errUnfit sets the exit code; the findings have the details.
var errUnfit = errors.New("this node cannot serve volumes as it is: see the lines marked FAIL")

func printFindings(w io.Writer, findings []doctor.Finding, f format) error {
	worst := doctor.Worst(findings)
	if f == asJSON {
		if err := printJSON(w, struct {
			Level    doctor.Level     `json:"level"`
			Findings []doctor.Finding `json:"findings"`
		}{worst, findings}); err != nil {
			return err
		}
	} else if err := printLines(w, findings); err != nil {
		return err
	}
	if worst == doctor.Fail {
		return errUnfit
	}
	return nil
}

func printLines(w io.Writer, findings []doctor.Finding) error {
	for _, f := range findings {
		if _, err := fmt.Fprintf(w, "%-4s  %s: %s\n", f.Level, f.Check, f.Detail); err != nil {
			return err
		}
		if f.Do == "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "      → %s\n", f.Do); err != nil {
			return err
		}
	}
	return nil
}
