package csidoor

import (
	"context"
	"time"

	"github.com/flexlvm/flexlvm/internal/inventory"
)

// inventoryLife is how long an inventory answers calls. kubelet asks for the health of one
// volume after the other, once a minute, and mounts wait while LVM reports.
const inventoryLife = 20 * time.Second

// inventories shares inventories between calls.
type inventories struct {
	engine Engine
	now    func() time.Time

	turn  chan struct{} // a semaphore: its holder alone may use the fields below
	last  inventory.Inventory
	begun time.Time // zero: there is none
}

func newInventories(engine Engine, now func() time.Time) *inventories {
	return &inventories{engine: engine, now: now, turn: make(chan struct{}, 1)}
}

// since returns an inventory that was begun at that instant or later. Nobody may change it.
// Calls that come meanwhile wait for it, and share it. Where it fails, or the call that began it
// ends, the next of them begins another.
func (i *inventories) since(ctx context.Context, at time.Time) (inventory.Inventory, error) {
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
