package node

import (
	"context"
	"errors"
	"time"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/pause"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	// resumePoll is the interval at which a suspended device is checked.
	resumePoll = 20 * time.Millisecond
	// resumeWait suffices for LVM's own commands, which suspend a device for a moment.
	resumeWait = 2 * time.Second
)

// usableDevice returns the device of a volume, provided that opening it does not block. The engine finds every
// device with it that it opens or unmounts. The error is lvm.ErrNoDevice, lvm.ErrSuspended, or the reason why
// the state is unknown.
func (e *Engine) usableDevice(ctx context.Context, g volume.Group, n volume.Name) (lvm.Device, error) {
	d, err := lvm.FindDevice(g, n)
	if err != nil {
		return d, err
	}
	return d, e.awaitResumed(ctx, d)
}

// awaitResumed waits for a suspended device, for at most resumeWait: without it, a call would block in the
// kernel for as long as the device is suspended, past every deadline.
func (e *Engine) awaitResumed(ctx context.Context, d lvm.Device) error {
	ctx, cancel := context.WithTimeout(ctx, e.resumeWait)
	defer cancel()
	for {
		err := d.CheckResumed()
		if !errors.Is(err, lvm.ErrSuspended) {
			return err
		}
		if pause.For(ctx, resumePoll) != nil {
			return err
		}
	}
}
