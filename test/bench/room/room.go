// Package room measures, on a virtual cluster, how much longer a pod with a new claim waits on a node whose pool is
// full of unreferenced volumes than on an empty one.
package room

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/flexlvm/flexlvm/test/bench/figure"
	"github.com/flexlvm/flexlvm/test/bench/start"
)

const (
	node = "node1"
	disk = 16 << 30
	// Twelve volumes of this size fill the disk. Six new ones need five or six evictions, because headroom keeps
	// space for one.
	size, sizeBytes = "1180Mi", 1180 << 20
	fills           = 12
)

// Measure returns the lines of a table, and prints each time immediately: for one pod, for six at the same time, or
// for only one of these if pods is 1 or 6.
func Measure(ctx context.Context, pods, rounds int) (lines []string, err error) {
	err = withBench(ctx, func(b *bench) error {
		lines, err = b.full(ctx, pods, rounds)
		return err
	})
	return lines, err
}

// MeasureBusy is Measure for one pod while the node's processors are busy.
func MeasureBusy(ctx context.Context, rounds int) (lines []string, err error) {
	err = withBench(ctx, func(b *bench) error {
		lines, err = b.busy(ctx, rounds)
		return err
	})
	return lines, err
}

func withBench(ctx context.Context, do func(*bench) error) (err error) {
	bed, err := start.Open(ctx, disk)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bed.Close(ctx)) }()
	b := &bench{Bed: bed, began: time.Now()}
	if b.cluster, err = bed.Kubectl(ctx, "get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}"); err != nil {
		return err
	}
	return do(b)
}

// full compares a full pool with an empty one.
func (b *bench) full(ctx context.Context, pods, rounds int) (lines []string, err error) {
	if err := b.configure(ctx, "100m"); err != nil {
		return nil, err
	}
	warm := b.side(ctx, 1, false)
	for _, step := range []func() error{warm.Before, warm.Run, warm.After} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	b.say("warm")
	for _, part := range []struct {
		name   string
		pods   int
		target float64
	}{
		{"a pod with a new claim, on a full pool ÷ on an empty one", 1, 1.2},
		{"six at once, until the last runs, on a full pool ÷ on an empty one", 6, 1.3},
	} {
		if pods != 0 && pods != part.pods {
			continue
		}
		f, err := figure.CompareWarm(part.name, rounds, part.target, b.side(ctx, part.pods, true), b.side(ctx, part.pods, false), func(ours bool, took time.Duration) {
			b.say("%d pods, full %t: %.1f s", part.pods, ours, took.Seconds())
		})
		if err != nil {
			return lines, err
		}
		lines = append(lines, f.String())
		b.say("%s", f)
	}
	return lines, nil
}

type bench struct {
	*start.Bed
	began   time.Time
	cluster string // its UID
	n       int    // volumes so far
}

func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%5.1fs %s\n", time.Since(b.began).Seconds(), fmt.Sprintf(format, args...))
}

// configure lets released volumes be evicted immediately and the pool become full: no threshold keeps space free.
// It sets the daemon's CPU request.
func (b *bench) configure(ctx context.Context, cpu string, more ...string) error {
	args := append([]string{"--min-age=0s", "--high-threshold-percent=100"}, more...)
	patch := fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"gc","args":["%s"],"resources":{"requests":{"cpu":"%s"}}}]}}}}`, strings.Join(args, `","`), cpu)
	if _, err := b.Kubectl(ctx, "-n", "flexlvm-system", "patch", "daemonset", "flexlvm-gc", "-p", patch); err != nil {
		return err
	}
	_, err := b.Kubectl(ctx, "-n", "flexlvm-system", "rollout", "status", "daemonset/flexlvm-gc", "--timeout=240s")
	return err
}

// names returns n new names for pods, claims or volumes.
func (b *bench) names(n int) (out []string) {
	for range n {
		b.n++
		out = append(out, fmt.Sprintf("pod-%d", b.n))
	}
	return out
}

func (b *bench) side(ctx context.Context, pods int, full bool) figure.Side {
	var names []string
	var began time.Time
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
			began = time.Now()
			return nil
		},
		Run: func() error { return b.Run(ctx, size, names...) },
		After: func() error {
			if full {
				if err := b.tell(ctx, began); err != nil {
					return err
				}
			}
			return b.End(ctx, names...)
		},
	}
}

// empty removes all volumes by hand. None has a claim, but kubelet may still have some mounted for a moment, and
// the daemon may be removing some as well.
func (b *bench) empty(ctx context.Context) error {
	out, err := b.Node(ctx, node, "sh", "-c", `tries=0
		until lvs --noheadings -o lv_full_name -S 'lv_tags={"flexlvm"}' | xargs -r lvremove --yes; do
			tries=$((tries + 1)); [ $tries -lt 60 ] || exit 1; sleep 1
		done`)
	if err != nil {
		return fmt.Errorf("empty the pool: %w: %s", err, out)
	}
	return b.settled(ctx)
}

// fill fills the pool with released volumes, with the driver only: with pods and claims it would take minutes.
func (b *bench) fill(ctx context.Context) error {
	var script strings.Builder
	script.WriteString("set -e; mkdir -p /tmp/fill\n")
	for _, name := range b.names(fills) {
		options := fmt.Sprintf(`{"volumeGroup":"flexlvm","size":"%d","clusterUID":"%s","kubernetes.io/fsType":"","kubernetes.io/readwrite":"rw",`+
			`"kubernetes.io/pvOrVolumeName":"%s","kubernetes.io/pod.name":"fill","kubernetes.io/pod.namespace":"default",`+
			`"kubernetes.io/pod.uid":"0","kubernetes.io/serviceAccount.name":"default"}`, sizeBytes, b.cluster, name)
		fmt.Fprintf(&script, "%[1]s mount /tmp/fill '%[2]s'; %[1]s unmount /tmp/fill; until %[1]s volumes forget %[3]s; do sleep .2; done\n", start.Driver, options, name)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if out, err := b.NodeInput(ctx, strings.NewReader(script.String()), node, "sh"); err != nil {
		return fmt.Errorf("fill the pool: %w: %s", err, out)
	}
	return b.settled(ctx)
}

// settled waits until neither the volumes nor the published capacities change: the daemon has evicted what headroom
// requires, and the scheduler can see the result.
func (b *bench) settled(ctx context.Context) error {
	last := ""
	for same := 0; same < 3; {
		now, err := b.Node(ctx, node, "lvs", "--noheadings", "-o", "lv_name,lv_tags")
		if err != nil {
			return err
		}
		offers, err := b.Kubectl(ctx, "get", "csistoragecapacities", "-n", "flexlvm-system", "-o", "jsonpath={.items[*].capacity}")
		if err != nil {
			return err
		}
		if same++; now+offers != last {
			same = 0
		}
		last = now + offers
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
	return nil
}
