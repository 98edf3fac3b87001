package csidoor

import (
	"context"
	"time"

	"github.com/flexlvm/flexlvm/internal/inventory"
)

// inventoryLife is how long an inventory is reused. kubelet asks for the health of each volume once a minute,
// and mounts have to wait while LVM reports.
const inventoryLife = 20 * time.Second

// inventoryCache shares inventories between calls.
type inventoryCache struct {
	engine Engine
	now    func() time.Time

	turn  chan struct{} // a semaphore that guards the fields below
	last  inventory.Inventory
	begun time.Time // zero if there is no inventory yet
}

func newInventoryCache(engine Engine, now func() time.Time) *inventoryCache {
	return &inventoryCache{engine: engine, now: now, turn: make(chan struct{}, 1)}
}

// notOlderThan returns an inventory that was started at that instant or later. Callers must not change it.
// Concurrent callers wait for one inventory and share it. If it fails, or the call that started it ends, the
// next caller starts another.
func (i *inventoryCache) notOlderThan(ctx context.Context, at time.Time) (inventory.Inventory, error) {
	select {
	case i.turn <- struct{}{}:
		defer func() { <-i.turn }()
	case <-ctx.Done():
		return inventory.Inventory{}, ctx.Err()
	}
	if !i.begun.IsZero() && !i.begun.Before(at) {
		return i.last, nil
	}
	begun := i.now()
	in, err := i.engine.Inventory(ctx)
	if err != nil {
		return inventory.Inventory{}, err
	}
	i.last, i.begun = in, begun
	return in, nil
}
