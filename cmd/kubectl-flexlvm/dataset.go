package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/overview"
	"github.com/flexlvm/flexlvm/internal/pause"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	// barWidth is the width of a progress bar in characters.
	barWidth = 20
	// redrawEvery is the interval at which --watch reads the datasets.
	redrawEvery = time.Second
	// clearScreen is the escape sequence that clears a terminal and moves the cursor to the top.
	clearScreen = "\033[H\033[2J"
)

// errNotLoaded sets the exit code; the table has the details.
var errNotLoaded = errors.New("a dataset has failed")

// errNoManager: a VolumeManager that was named does not exist.
var errNoManager = errors.New("there is no VolumeManager")

// datasetOptions are the arguments and flags of the command.
type datasetOptions struct {
	output
	names []string
	all   bool
	watch bool
}

func datasetCommand(s *session) *cobra.Command {
	var o datasetOptions
	cmd := &cobra.Command{
		Use:     "dataset [NAME...]",
		Aliases: []string{"datasets"},
		Short:   "Show how much of each dataset every node has loaded",
		Long: `dataset shows the VolumeManagers of a namespace, or those that are named, and how much of their
datasets each node has loaded. With --watch it prints every change until each dataset is loaded or
has failed. Then the exit code is 1 if any has failed.`,
		Example: `  kubectl flexlvm dataset books -n shop --watch`,
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			c, err := s.client()
			if err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			all, err := o.datasets(cmd.Context(), s, c)
			if err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			var names []string
			for i := range all {
				names = append(names, all[i].Name)
			}
			return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(); err != nil {
				return err
			}
			o.names = args
			c, err := s.client()
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			file, is := out.(*os.File)
			return o.show(cmd.Context(), func(ctx context.Context) ([]overview.Dataset, error) { return o.datasets(ctx, s, c) }, out, cmd.ErrOrStderr(), is && term.IsTerminal(int(file.Fd())))
		},
	}
	cmd.AddCommand(datasetRefreshCommand(s))
	outputFlag(cmd, &o.output)
	cmd.Flags().BoolVarP(&o.all, "all-namespaces", "A", false, "show the datasets of all namespaces")
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "print every change until each dataset is loaded or has failed")
	return cmd
}

// datasets returns the requested datasets. It fails if a VolumeManager that is named does not exist.
func (o *datasetOptions) datasets(ctx context.Context, s *session, c client.Client) ([]overview.Dataset, error) {
	namespace := ""
	if !o.all {
		var err error
		if namespace, err = s.namespace(); err != nil {
			return nil, err
		}
	}
	return o.datasetsIn(ctx, c, namespace)
}

func (o *datasetOptions) datasetsIn(ctx context.Context, c client.Client, namespace string) ([]overview.Dataset, error) {
	var managers []flexlvmv1.VolumeManager
	if err := list(ctx, c, func(l *flexlvmv1.VolumeManagerList) { managers = append(managers, l.Items...) }, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	if len(o.names) > 0 {
		managers = slices.DeleteFunc(managers, func(m flexlvmv1.VolumeManager) bool { return !slices.Contains(o.names, m.Name) })
	}
	for _, name := range o.names {
		if !slices.ContainsFunc(managers, func(m flexlvmv1.VolumeManager) bool { return m.Name == name }) {
			return nil, fmt.Errorf("%w %s in %s", errNoManager, name, inNamespace(namespace))
		}
	}
	return overview.DatasetsOf(managers), nil
}

// inNamespace describes a namespace for messages; empty means all.
func inNamespace(namespace string) string {
	if namespace == "" {
		return "any namespace"
	}
	return "namespace " + namespace
}

// show prints the datasets. With --watch it prints them again whenever something changes, and retries requests that
// fail.
func (o *datasetOptions) show(ctx context.Context, read func(context.Context) ([]overview.Dataset, error), out, notes io.Writer, terminal bool) error {
	r := retries{note: func(text string) { fmt.Fprintln(controlFilter{notes}, text) }}
	for last := ""; ; {
		all, err := read(ctx)
		if err != nil {
			if err = o.permanentError(ctx, &r, err); err != nil {
				return err
			}
			if err := pause.For(ctx, redrawEvery); err != nil {
				return err
			}
			continue
		}
		r.succeeded()
		var text bytes.Buffer
		if err := o.print(&text, all, func(to io.Writer) { printDatasets(to, all, o.wide()) }); err != nil {
			return err
		}
		if text.String() != last {
			if terminal && o.watch {
				fmt.Fprint(out, clearScreen)
			}
			fmt.Fprint(out, text.String())
			last = text.String()
		}
		if !o.watch || !slices.ContainsFunc(all, func(d overview.Dataset) bool { return !d.Settled() }) {
			return checkLoaded(all, o.watch)
		}
		if err := pause.For(ctx, redrawEvery); err != nil {
			return err
		}
	}
}

// permanentError returns the error with which show ends; nil if it retries.
func (o *datasetOptions) permanentError(ctx context.Context, r *retries, err error) error {
	if !o.watch || errors.Is(err, errNoManager) {
		return err
	}
	return r.permanentError(ctx, err)
}

func checkLoaded(all []overview.Dataset, watched bool) error {
	if watched && slices.ContainsFunc(all, func(d overview.Dataset) bool { return d.State == flexlvmv1.StateFailed }) {
		return errNotLoaded
	}
	return nil
}

func printDatasets(to io.Writer, all []overview.Dataset, wide bool) {
	if len(all) == 0 {
		fmt.Fprintln(to, "no datasets")
		return
	}
	for i := range all {
		d := &all[i]
		if i > 0 {
			fmt.Fprintln(to)
		}
		fmt.Fprintf(to, "%s/%s %s: %s, %d of %s ready", d.Namespace, d.Name, d.ID, orDash(string(d.State)), d.Ready, volume.Pluralize(d.Replicas, "replica", "replicas"))
		if d.Claim != "" {
			fmt.Fprintf(to, ", claim %s", d.Claim)
		}
		fmt.Fprintln(to)
		if d.Message != "" && d.Message != flexlvmv1.MessageSuccess {
			fmt.Fprintf(to, "  %s\n", d.Message)
		}
		table := [][]string{}
		for _, r := range d.Nodes {
			p := r.Progress
			row := []string{"  " + orDash(r.Node), bar(p.Percent), fmt.Sprintf("%3d%%", p.Percent), string(r.State), loaded(p)}
			if wide {
				row = append(row, r.Claim, orDash(r.Version), fmt.Sprintf("%d/%s", p.Files, volume.Pluralize(p.FilesTotal, "file", "files")))
			}
			table = append(table, append(row, r.Message))
		}
		printTable(to, table)
		if d.Unlisted > 0 {
			fmt.Fprintf(to, "  and %s, not listed; total progress %d%%\n", volume.Pluralize(d.Unlisted, "more replica", "more replicas"), d.Progress.Percent)
		}
	}
}

func loaded(p flexlvmv1.Progress) string {
	if p.BytesTotal == 0 {
		return "-"
	}
	return volume.Bytes(p.Bytes).String() + " of " + volume.Bytes(p.BytesTotal).String()
}

func bar(percent int32) string {
	done := int(max(0, min(percent, 100))) * barWidth / 100
	return "[" + strings.Repeat("#", done) + strings.Repeat("-", barWidth-done) + "]"
}
