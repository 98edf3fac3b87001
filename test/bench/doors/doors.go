// Package doors compares the two drivers with emptyDir and other provisioners of local volumes, on one virtual
// cluster: how long a user waits for each step in the life of a claim, and the memory of each provisioner's pods on
// a node.
package doors

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/flexlvm/flexlvm/test/bench/figure"
	"github.com/flexlvm/flexlvm/test/bench/start"
	"github.com/flexlvm/flexlvm/test/vm"
)

// Config configures a measurement.
type Config struct {
	Rounds int
	Within time.Duration // a round that would probably end later does not start; 0: no limit
	// A driver beside the built-in ones; none if Class is empty.
	Class     string   // its StorageClass
	Grows     bool     // its claims may grow
	Namespace string   // of its pods
	Manifests []string // files, or folders with a kustomization
	Images    []string // archives of the manifests' images
	Log       io.Writer
}

const disk = 16 << 30

// Measure returns the lines of two tables, and a comparison.
func Measure(ctx context.Context, cfg Config) (lines []string, err error) {
	b, err := start.Open(ctx, disk)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close(ctx)) }()
	sides := []*side{
		{name: "emptyDir"},
		{name: "local-path", class: "local-path"},
		{name: "FlexVolume", class: "flexlvm", grows: true},
		{name: "CSI", class: "flexlvm-csi", grows: true},
	}
	namespaces := []string{"flexlvm-system", localPathNamespace}
	if err := installDoor(ctx, b); err != nil {
		return nil, err
	}
	if err := installLocalPath(ctx, b, cfg.Log); err != nil {
		return nil, err
	}
	if cfg.Class != "" {
		if err := installOther(ctx, b, cfg); err != nil {
			return nil, err
		}
		sides = append(sides, &side{name: cfg.Class, class: cfg.Class, grows: cfg.Grows})
		namespaces = append(namespaces, cfg.Namespace)
	}
	done, err := rounds(ctx, b, cfg, sides)
	if err != nil {
		return nil, err
	}
	lines = append(table(sides), "", fmt.Sprintf("rounds: %d", done), "")
	memory, err := resident(ctx, b, namespaces)
	if err != nil {
		return nil, err
	}
	return slices.Concat(lines, memoryTable(memory, cfg.Namespace), beside(sides, cfg.Class)), nil
}

// rounds runs the sides in turns, each first in another round, and returns the number of rounds without the
// warm-up.
func rounds(ctx context.Context, b *start.Bed, cfg Config, sides []*side) (done int, err error) {
	began := time.Now()
	for i := range cfg.Rounds + 1 {
		if each := time.Since(began) / time.Duration(max(i, 1)); i > 1 && cfg.Within > 0 && time.Since(began)+each > cfg.Within {
			break
		}
		for j := range sides {
			s := turn(sides, i, j)
			times, err := s.round(ctx, b, i)
			if err != nil {
				return done, fmt.Errorf("%s: %w", s.name, err)
			}
			fmt.Fprintf(cfg.Log, "round %d: %s: %v\n", i, s.name, times)
			if i > 0 { // the first round warms up
				s.add(times)
			}
		}
		done = i
	}
	return done, nil
}

// turn returns the side at position j of round i. The first side rotates, and every other round runs in reverse
// order, so that work which a side leaves to the node affects each of its neighbors equally often.
func turn(sides []*side, i, j int) *side {
	if i%2 == 1 {
		j = len(sides) - j
	}
	return sides[(i/2+j)%len(sides)]
}

// installDoor installs the CSI driver. Its class differs from the FlexVolume class only in the driver.
func installDoor(ctx context.Context, b *start.Bed) error {
	source, err := vm.SourceDir()
	if err != nil {
		return err
	}
	if _, err := b.Kubectl(ctx, "apply", "-k", filepath.Join(source, "installer/csi")); err != nil {
		return err
	}
	if _, err := b.Kubectl(ctx, "-n", "flexlvm-system", "rollout", "status", "daemonset/flexlvm-csi", "--timeout=240s"); err != nil {
		return err
	}
	return b.Offered(ctx, "flexlvm-csi")
}

func installOther(ctx context.Context, b *start.Bed, cfg Config) error {
	for _, archive := range cfg.Images {
		if err := b.LoadImage(ctx, archive); err != nil {
			return err
		}
	}
	for _, manifest := range cfg.Manifests {
		how := "-k"
		if slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(manifest)) {
			how = "-f"
		}
		if _, err := b.Kubectl(ctx, "apply", how, manifest); err != nil {
			return err
		}
	}
	_, err := b.Kubectl(ctx, "-n", cfg.Namespace, "wait", "pods", "--all", "--for=condition=Ready", "--timeout=240s")
	return err
}

// steps of a claim's life, in this order.
var steps = []string{
	"claim and pod applied → Running",
	"pod again on its volume → Running",
	"claim asks for more, pod running → it has it",
	"pod and claim deleted → PersistentVolume gone",
}

// A side is one of the compared provisioners.
type side struct {
	name  string
	class string // empty: an emptyDir
	grows bool
	times map[string][]time.Duration
}

func (s *side) add(times map[string]time.Duration) {
	if s.times == nil {
		s.times = map[string][]time.Duration{}
	}
	for step, took := range times {
		s.times[step] = append(s.times[step], took)
	}
}

// round runs one claim's life.
func (s *side) round(ctx context.Context, b *start.Bed, n int) (map[string]time.Duration, error) {
	const size, more = "64Mi", "128Mi"
	claim := start.Claim{Class: s.class, Name: fmt.Sprintf("doors-%s-%d", label(s.name), n)}
	if s.class != "" {
		claim.Size = size
	}
	times := map[string]time.Duration{}
	timed := func(step string, run func() error) error {
		began := time.Now()
		err := run()
		times[step] = time.Since(began)
		return err
	}
	if err := timed(steps[0], func() error { return b.RunClaims(ctx, claim) }); err != nil {
		return nil, err
	}
	if err := b.EndPod(ctx, claim.Name); err != nil {
		return nil, err
	}
	if err := timed(steps[1], func() error { return b.RunPod(ctx, claim) }); err != nil {
		return nil, err
	}
	if s.grows {
		if err := timed(steps[2], func() error { return b.Grow(ctx, claim.Name, more) }); err != nil {
			return nil, err
		}
	}
	// A pod's deletion does not wait for the node, so without a claim there is nothing to measure.
	if s.class == "" {
		return times, b.End(ctx, claim.Name)
	}
	return times, timed(steps[3], func() error { return b.End(ctx, claim.Name) })
}

func (s *side) median(step string) time.Duration {
	if len(s.times[step]) == 0 {
		return 0
	}
	return figure.Median(s.times[step])
}
