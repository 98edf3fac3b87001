package nodeagent

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// quantizeThinPool rounds the room of a thin pool, which changes with every write to one of its volumes, because each
// report is a write to the API server and updates the published capacity. Rounding never offers more than there
// is. was are the pools of the last report.
func quantizeThinPool(p *flexlvmv1.Pool, was []flexlvmv1.Pool) {
	if p.Layout != string(volume.Thin) {
		return
	}
	before := flexlvmv1.Pool{Free: p.Size, Allocatable: p.Size}
	if i := slices.IndexFunc(was, func(one flexlvmv1.Pool) bool { return one.UUID == p.UUID && one.Size.Cmp(p.Size) == 0 }); i >= 0 {
		before = was[i]
	}
	size := bytesOf(p.Size)
	step := volume.ThinStep(size)
	less := func(exact, before resource.Quantity) resource.Quantity {
		return quantity(max(0, size-roundUp(size-bytesOf(exact), size-bytesOf(before), step)))
	}
	p.Free, p.Allocatable = less(p.Free, before.Free), less(p.Allocatable, before.Allocatable)
	p.Promised = quantity(roundUp(bytesOf(p.Promised), bytesOf(before.Promised), step))
}

// roundUp rounds up to a step. The last reported value stays while it is large enough and less than two steps
// away, so that a value that varies around a step is not reported each time.
func roundUp(exact, before, step volume.Bytes) volume.Bytes {
	if exact > 0 && before >= exact && before-exact < 2*step {
		return before
	}
	return (exact + step - 1) / step * step
}

func bytesOf(q resource.Quantity) volume.Bytes { return volume.Bytes(q.Value()) }
