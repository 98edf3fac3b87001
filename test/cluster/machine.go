package cluster

import (
	"context"
	"io"

	"github.com/flexlvm/flexlvm/test/vm"
)

// nodeMachine is what nodes boot from, and how.
type nodeMachine struct {
	vm.Images
	// accel are QEMU's arguments for the best accelerator that works.
	accel []string
}

func findMachine(ctx context.Context, log io.Writer) (nodeMachine, error) {
	images, err := vm.BuildImages(ctx, log)
	if err != nil {
		return nodeMachine{}, err
	}
	accel, err := vm.Accelerator(ctx, images)
	return nodeMachine{Images: images, accel: accel}, err
}
