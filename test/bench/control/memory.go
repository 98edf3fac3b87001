package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// RunMemory returns the memory of provisioners of clusters that are too large to exist on this machine.
func RunMemory(ctx context.Context, binary, dir string, log io.Writer) (lines []string, err error) {
	err = withBed(ctx, binary, dir, log, func(b *bed) error {
		lines, err = b.memory(ctx)
		return err
	})
	return lines, err
}

// memory measures provisioners that start in a synthetic cluster: their peak memory until all capacities are
// published.
func (b *bed) memory(ctx context.Context) (lines []string, err error) {
	if err := b.nodes(ctx, 0, fewNodes); err != nil {
		return nil, fmt.Errorf("make nodes: %w", err)
	}
	like, err := b.example(ctx)
	if err != nil {
		return nil, err
	}
	own := b.kubeconfig
	defer func() { b.kubeconfig = own }()
	for _, s := range syntheticStages {
		b.kubeconfig = own
		shown, kubeconfig, err := b.synthesise(ctx, like, s)
		if err != nil {
			return lines, err
		}
		b.kubeconfig = kubeconfig
		line, err := b.memoryOf(ctx, s)
		if err := errors.Join(err, shown.end()); err != nil {
			return lines, err
		}
		fmt.Fprintln(b.log, line)
		lines = append(lines, line)
	}
	return lines, nil
}

func (b *bed) memoryOf(ctx context.Context, s stage) (string, error) {
	offered, err := b.offered(ctx)
	if err != nil {
		return "", err
	}
	p, err := b.launch(memoryLimit(s.nodes * s.each))
	if err != nil {
		return "", err
	}
	began := time.Now()
	line := ""
	if _, err = p.settled(ctx, float64((s.nodes-fewNodes)*offered)); err == nil {
		fmt.Fprintf(b.log, "the capacities of %d nodes are published after %.0f s\n", s.nodes, time.Since(began).Seconds())
		line, err = p.memoryOf(s)
	}
	if err := errors.Join(err, p.end()); err != nil {
		return "", fmt.Errorf("%w: %s", err, p.logEnd())
	}
	return line + ", a synthetic cluster", nil
}

// memoryOf returns a line with a provisioner's peak memory and its target.
func (p *process) memoryOf(s stage) (string, error) {
	peak, err := p.peak()
	if err != nil {
		return "", err
	}
	target := ""
	if s.memory > 0 {
		target = fmt.Sprintf(" (target ≤ %.0f MiB)", s.memory)
	}
	return fmt.Sprintf("memory of the provisioner with %d nodes and %d volumes: %.1f MiB at most%s", s.nodes, s.nodes*s.each, peak, target), nil
}
