package node

import (
	"context"
	"errors"
	"time"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	// devicePoll is how often a device is looked at that is suspended, or about to appear.
	devicePoll = 20 * time.Millisecond
	// resumeWait is for commands of LVM's, which suspend a device for a moment.
	resumeWait = 2 * time.Second
	// nodeWait is for udev, which has much to do after a boot.
	nodeWait = 10 * time.Second
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
	return retry(ctx, lvm.ErrSuspended, d.CheckResumed)
}

// awaitNode waits for the device of a volume that is active. After a boot the host may be
// activating it as well: LVM then waits for its own changes, and not for the node in /dev that
// udev is about to make for another's.
func (e *Engine) awaitNode(ctx context.Context, g volume.Group, n volume.Name) (d lvm.Device, err error) {
	ctx, cancel := context.WithTimeout(ctx, nodeWait)
	defer cancel()
	err = retry(ctx, lvm.ErrNoDevice, func() error {
		d, err = e.usable(ctx, g, n)
		return err
	})
	return d, err
}

// retry calls what may fail for a moment until it fails with another error than that one, or
// ctx ends, and returns its last error.
func retry(ctx context.Context, while error, call func() error) error {
	for {
		err := call()
		if !errors.Is(err, while) {
			return err
		}
		poll := time.NewTimer(devicePoll)
		select {
		case <-ctx.Done():
			poll.Stop()
			return err
		case <-poll.C:
		}
	}
}
