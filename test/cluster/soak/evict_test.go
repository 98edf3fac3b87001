//go:build cluster

package soak_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// evictOne makes a node evict a volume if none was evicted, because a few claims may all find room: it creates
// another claim, which a node has room for only without one of its released volumes.
func (b *bed) evictOne(ctx context.Context, t *testing.T, h *history) {
	t.Helper()
	if h.evictions() > 0 {
		return
	}
	b.settle(ctx, t, h)
	if h.evictions() > 0 { // some wait until no pod starts
		return
	}
	c := b.inNeed(ctx, t)
	if c == nil { // no volume is released
		live := h.living()
		lazy := slices.IndexFunc(live, func(c *claim) bool { return c.class != immediate })
		require.GreaterOrEqual(t, lazy, 0, "no claim is left whose volume could be evicted, and no volume is released")
		require.NoError(t, b.remove(ctx, h, live[lazy]))
		b.settle(ctx, t, h)
		c = b.inNeed(ctx, t)
		require.NotNil(t, c, "the volume of claim %s was not released", live[lazy].name)
	}
	h.add(c)
	if err := b.create(ctx, h, c); err != nil {
		h.amiss("claim %s: %v", c.name, err)
	}
}

// inNeed returns a claim that is slightly too large for the free space of a node with a released volume, or nil
// if there is no such node.
func (b *bed) inNeed(ctx context.Context, t *testing.T) *claim {
	t.Helper()
	for _, node := range b.nodes {
		list, err := b.volumes(ctx, node)
		require.NoError(t, err)
		if !slices.ContainsFunc(list, func(v inventory.Volume) bool { return v.State == volume.Unreferenced }) {
			continue
		}
		out := b.onNode(ctx, t, node, "vgs --noheadings --units b --nosuffix -o vg_free "+group)
		free, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
		require.NoError(t, err)
		size := 64 * volume.MiB // released volumes are at least as large, and the steps smaller
		for device(size) <= volume.Bytes(free) {
			size += 8 * volume.MiB
		}
		return &claim{name: "last", node: node, class: classes[0], size: size, now: size, grown: size, blocks: 4}
	}
	return nil
}

// add adds a claim that is about to be created.
func (h *history) add(c *claim) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.claims = append(h.claims, c)
}

// evictions returns how many volumes were evicted, as events report, other than for their class.
func (h *history) evictions() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.evictionsLocked()
}

func (h *history) evictionsLocked() (n int) {
	for _, e := range h.evicted {
		if e.reason != "Immediate" {
			n++
		}
	}
	return n
}
