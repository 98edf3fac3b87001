package node

import (
	"context"
	"errors"
	"time"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	// resumePoll is how often a device is asked for that is suspended.
	resumePoll = 20 * time.Millisecond
	// resumeWait is for commands of LVM's, which suspend a device for a moment.
	resumeWait = 2 * time.Second
)

// usable returns the device of a volume that can be opened; every device is found here
// that the engine opens, or unmounts. The error is lvm.ErrNoDevice or lvm.ErrSuspended,
// or says why it cannot be told.
func (e *Engine) usable(ctx context.Context, g volume.Group, n volume.Name) (lvm.Device, error) {
	d, err := lvm.FindDevice(g, n)
	if err != nil {
		return d, err
	}
	return d, awaitResumed(ctx, d)
}

// awaitResumed waits a moment for a device that is suspended, and no longer: without it
// a call would wait in the kernel for as long as the device is, past every deadline.
func awaitResumed(ctx context.Context, d lvm.Device) error {
	ctx, cancel := context.WithTimeout(ctx, resumeWait)
	defer cancel()
	for {
		err := d.CheckResumed()
		if !errors.Is(err, lvm.ErrSuspended) {
			return err
		}
		poll := time.NewTimer(resumePoll)
		select {
		case <-ctx.Done():
			poll.Stop()
			return err
		case <-poll.C:
		}
	}
}
