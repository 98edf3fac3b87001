package eviction

import (
	"math/bits"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// MessageStep returns the step in which messages show sizes of a pool. Those of a thin pool change with every write
// to one of its volumes, and each new message is a write to the API server. The step is a power of two, so that round
// sizes stay round, and at most 1/512 of the pool.
func MessageStep(p inventory.Pool) volume.Bytes {
	if p.Thin == nil {
		return 1
	}
	return 1 << bits.Len64(uint64(max(p.Size, 0)/1024))
}

// roundUp rounds up what is needed or used, and roundDown rounds down what is free, so that no message promises more
// than there is.
func (p *poolPlan) roundUp(b volume.Bytes) volume.Bytes {
	step := MessageStep(p.Pool)
	return (b + step - 1) / step * step
}

func (p *poolPlan) roundDown(b volume.Bytes) volume.Bytes { return b - b%MessageStep(p.Pool) }
