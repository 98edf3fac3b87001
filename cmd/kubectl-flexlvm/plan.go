package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/flexlvm/flexlvm/internal/overview"
	"github.com/flexlvm/flexlvm/internal/provision"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// planOptions are the flags of the command.
type planOptions struct {
	output
	claim string
	class string
	nodes int
	next  int
}

func planCommand(s *session) *cobra.Command {
	var o planOptions
	cmd := &cobra.Command{
		Use:   "plan [--claim SIZE [--class CLASS] [--nodes N]]",
		Short: "Show which volumes are evicted next, or on which nodes a new claim would fit",
		Long: `plan shows which volumes each node evicts now, and which it evicts next when room is needed.
With --claim it predicts for every node whether a new claim of that size fits, as the
provisioner decides, and which volumes the node would evict for it, in order, or why the
claim does not fit. It uses what the nodes reported last, and changes nothing.`,
		Example: `  kubectl flexlvm plan --next 10
  kubectl flexlvm plan --claim 500Gi --class flexlvm --nodes 3`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd, s) },
	}
	outputFlag(cmd, &o.output)
	cmd.Flags().StringVar(&o.claim, "claim", "", "size of the new claim, such as 500Gi")
	cmd.Flags().StringVar(&o.class, "class", "flexlvm", "StorageClass of the new claim")
	cmd.Flags().IntVar(&o.nodes, "nodes", 1, "number of nodes that need such a claim")
	cmd.Flags().IntVar(&o.next, "next", 3, "without --claim: number of volumes of each pool to show")
	return cmd
}

func (o *planOptions) run(cmd *cobra.Command, s *session) error {
	if err := o.check(); err != nil {
		return err
	}
	if err := o.checkClaim(cmd); err != nil { // before the first request to the cluster
		return err
	}
	c, err := s.client()
	if err != nil {
		return err
	}
	var objects overview.Objects
	if objects.Storages, err = nodeStorages(cmd.Context(), c); err != nil {
		return err
	}
	now := time.Now()
	if o.claim == "" {
		next := overview.NextOf(objects.Storages, o.next, now)
		return o.print(cmd.OutOrStdout(), next, func(to io.Writer) {
			if printReported(to, objects.Storages) {
				printNext(to, next, now)
			}
		})
	}
	class, err := storageClass(cmd.Context(), c, o.class)
	if err != nil {
		return err
	}
	spec, err := specOf(o.claim, class)
	if err != nil {
		return err
	}
	if objects.Volumes, err = persistentVolumes(cmd.Context(), c); err != nil {
		return err
	}
	fits := overview.FitsOf(objects, spec, now)
	return o.print(cmd.OutOrStdout(), fits, func(to io.Writer) {
		if printReported(to, objects.Storages) {
			o.printFits(to, fits, now)
		}
	})
}

// checkClaim refuses invalid flags and flags that would be ignored.
func (o *planOptions) checkClaim(cmd *cobra.Command) error {
	for name, n := range map[string]int{"nodes": o.nodes, "next": o.next} {
		if n < 1 {
			return fmt.Errorf("--%s %d: give 1 or more", name, n)
		}
	}
	if o.claim != "" {
		if f := cmd.Flags().Lookup("next"); f.Changed {
			return fmt.Errorf("--next %s: cannot be combined with --claim, which shows all evictions; leave it out", f.Value)
		}
		_, err := sizeOf(o.claim)
		return err
	}
	for _, name := range []string{"claim", "class", "nodes"} {
		if f := cmd.Flags().Lookup(name); f.Changed {
			return fmt.Errorf("--%s %q: needs the size of a claim; set --claim, for example to 500Gi", name, f.Value)
		}
	}
	return nil
}

// specOf returns the volume of a claim of this size and class.
func specOf(size string, class *storagev1.StorageClass) (volume.Spec, error) {
	if class.Provisioner != pv.Provisioner {
		return volume.Spec{}, fmt.Errorf("StorageClass %s has the provisioner %s; choose one with the provisioner %s", class.Name, class.Provisioner, pv.Provisioner)
	}
	parameters, err := provision.ParseParameters(class.Parameters)
	if err != nil {
		return volume.Spec{}, fmt.Errorf("StorageClass %s: %w", class.Name, err)
	}
	wanted, err := sizeOf(size)
	if err != nil {
		return volume.Spec{}, err
	}
	spec := parameters.Spec
	spec.Size = wanted
	return spec, nil
}

// sizeOf returns the size of the volume for a claim of this size.
func sizeOf(claim string) (volume.Bytes, error) {
	quantity, err := resource.ParseQuantity(claim)
	if err != nil {
		return 0, fmt.Errorf("--claim %q: %w; give a size such as 500Gi", claim, err)
	}
	if quantity.Sign() <= 0 || quantity.CmpInt64(int64(volume.MaxSize)) > 0 {
		return 0, fmt.Errorf("--claim %q: give a size of more than 0 and at most %s", claim, volume.MaxSize)
	}
	return volume.Bytes(quantity.Value()).RoundUp(volume.Block), nil
}

func printNext(to io.Writer, next []overview.Eviction, now time.Time) {
	if len(next) == 0 {
		fmt.Fprintln(to, "no volume can be evicted on any node")
		return
	}
	table := [][]string{{"NODE", "POOL", "VOLUME", "NAMESPACE", "ROOM", "LAST-USED", "WHEN", "WHY"}}
	for _, e := range next {
		when := "later"
		if e.Reason != "" {
			when = "now"
		}
		table = append(table, append(evictionRow(e, now), when, e.Message))
	}
	printTable(to, table)
}

func evictionRow(e overview.Eviction, now time.Time) []string {
	return []string{e.Node, e.Pool, e.Name, orDash(e.Namespace), e.Room.String(), ago(e.LastUsed, now)}
}

func (o *planOptions) printFits(to io.Writer, fits []overview.Fit, now time.Time) {
	good := 0
	for _, f := range fits {
		if f.Fits {
			good++
		}
	}
	fmt.Fprintf(to, "A claim of %s of class %s fits on %d of %s", o.claim, o.class, good, volume.Pluralize(len(fits), "node", "nodes"))
	switch {
	case good < o.nodes && o.nodes > 1:
		fmt.Fprintf(to, "; %d are needed: %d too few", o.nodes, o.nodes-good)
	case good > 0:
		fmt.Fprintf(to, "; the best nodes come first")
	}
	fmt.Fprintln(to, ".")
	shown := 0
	for _, f := range fits {
		if shown++; shown > max(o.nodes, maxNodes) && !o.wide() {
			fmt.Fprintf(to, "\n%s; -o wide shows them\n", volume.Pluralize(len(fits)-shown+1, "more node", "more nodes"))
			return
		}
		printFit(to, f, now)
	}
}

func printFit(to io.Writer, f overview.Fit, now time.Time) {
	switch {
	case !f.Fits:
		fmt.Fprintf(to, "\n%s: no, it %s\n", f.Node, f.Why)
		return
	case !f.After.IsZero():
		fmt.Fprintf(to, "\n%s: yes, after %s, when these volumes have reached --min-age and can be evicted:\n", f.Node, duration.HumanDuration(f.After.Sub(now)))
	case len(f.Evictions)+len(f.Then) == 0 && f.Replicas == 0:
		fmt.Fprintf(to, "\n%s: yes, without evictions\n", f.Node)
	default:
		fmt.Fprintf(to, "\n%s: yes, with these evictions:\n", f.Node)
	}
	table := [][]string{}
	for _, e := range f.Evictions {
		table = append(table, append(append([]string{" "}, evictionRow(e, now)[1:]...), string(e.Reason)))
	}
	for _, e := range f.Then {
		table = append(table, append(append([]string{" "}, evictionRow(e, now)[1:]...), string(e.Reason)+", after the claim's volume is created"))
	}
	printTable(to, table)
	if f.Replicas > 0 {
		fmt.Fprintf(to, "  and unused replicas of datasets, %s in total\n", f.Replicas)
	}
	if f.Unlisted > 0 {
		fmt.Fprintf(to, "  The node has %s that it does not list.\n", volume.Pluralize(f.Unlisted, "released volume", "released volumes"))
	}
}
