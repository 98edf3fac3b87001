// Package room measures how much longer a pod with a new claim waits on a node whose pool is
// full of volumes that nobody wants than on an empty one, on a virtual cluster.
package room

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/flexlvm/flexlvm/test/bench/figure"
	"github.com/flexlvm/flexlvm/test/bench/start"
)

const (
	node = "node1"
	disk = 16 << 30
	// Twelve volumes of size fill the disk, so that six new ones need six evictions.
	size  = "1180Mi"
	fills = 12
)

// Measure returns the lines of a table: one pod, and six at once, and one while both
// processors of the node have something else to do.
func Measure(ctx context.Context) (lines []string, err error) {
	b, err := start.Open(ctx, disk)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close(ctx)) }()
	// What was given up may go at once, and the pool may be full: no threshold keeps room.
	patch := `{"spec":{"template":{"spec":{"containers":[{"name":"gc","args":["--min-age=0s","--high-threshold-percent=100"]}]}}}}`
	if _, err := b.Kubectl(ctx, "-n", "flexlvm-system", "patch", "daemonset", "flexlvm-gc", "-p", patch); err != nil {
		return nil, err
	}
	if _, err := b.Kubectl(ctx, "-n", "flexlvm-system", "rollout", "status", "daemonset/flexlvm-gc", "--timeout=240s"); err != nil {
		return nil, err
	}
	bench := &bench{Bed: b}
	for _, part := range []struct {
		name   string
		pods   int
		rounds int
		target float64
		busy   bool
	}{
		{"a pod with a new claim, on a full pool ÷ on an empty one", 1, 5, 1.2, false},
		{"six at once, until the last runs, on a full pool ÷ on an empty one", 6, 3, 1.3, false},
		{"a pod with a new claim, both processors of the node spinning, on a full pool ÷ on an empty one", 1, 3, 1.3, true},
	} {
		if part.busy {
			if err := bench.spin(ctx); err != nil {
				return nil, err
			}
		}
		f, err := figure.Compare(part.name, part.rounds, part.target, bench.side(ctx, part.pods, true), bench.side(ctx, part.pods, false))
		if err != nil {
			return nil, err
		}
		lines = append(lines, f.String())
		fmt.Fprintln(os.Stderr, f) // the next takes minutes
	}
	return lines, nil
}

type bench struct {
	*start.Bed
	n int // pods so far
}

// names are so many that no pod or claim has had.
func (b *bench) names(n int) (out []string) {
	for range n {
		b.n++
		out = append(out, fmt.Sprintf("pod-%d", b.n))
	}
	return out
}

func (b *bench) side(ctx context.Context, pods int, full bool) figure.Side {
	var names []string
	return figure.Side{
		Before: func() error {
			if err := b.empty(ctx); err != nil {
				return err
			}
			if full {
				if err := b.fill(ctx); err != nil {
					return err
				}
			}
			names = b.names(pods)
			return nil
		},
		Run:   func() error { return b.Run(ctx, size, names...) },
		After: func() error { return b.End(ctx, names...) },
	}
}

// empty takes all volumes away by hand; none has a claim any more, but kubelet may have some
// of them mounted for a moment yet, and the daemon may be about to remove some, too.
func (b *bench) empty(ctx context.Context) error {
	out, err := b.Node(ctx, node, "sh", "-c", `tries=0
		until lvs --noheadings -o lv_full_name -S 'lv_tags={"flexlvm"}' | xargs -r lvremove --yes; do
			tries=$((tries + 1)); [ $tries -lt 60 ] || exit 1; sleep 1
		done`)
	if err != nil {
		return fmt.Errorf("empty the pool: %w: %s", err, out)
	}
	return nil
}

// fill fills the pool with volumes whose claims are gone.
func (b *bench) fill(ctx context.Context) error {
	names := b.names(fills)
	if err := b.Run(ctx, size, names...); err != nil {
		return fmt.Errorf("fill the pool: %w", err)
	}
	if err := b.End(ctx, names...); err != nil {
		return fmt.Errorf("fill the pool: %w", err)
	}
	return b.settled(ctx)
}

// settled waits until the daemon has nothing to do: what headroom takes has gone.
func (b *bench) settled(ctx context.Context) error {
	last := ""
	for same := 0; same < 3; {
		now, err := b.Node(ctx, node, "lvs", "--noheadings", "-o", "lv_name,lv_tags")
		if err != nil {
			return err
		}
		if same++; now != last {
			same = 0
		}
		last = now
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
	return nil
}

// spin keeps two processors of the node busy, beside kubelet and its pods, as long as the
// node lives.
func (b *bench) spin(ctx context.Context) error {
	_, err := b.Node(ctx, node, "sh", "-c", `for i in 1 2; do (while :; do :; done) </dev/null >/dev/null 2>&1 & done`)
	return err
}
