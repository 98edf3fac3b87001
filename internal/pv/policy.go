package pv

import (
	"fmt"
	"strings"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// Reclaim is when a released volume gives its room back.
type Reclaim string

const (
	// ReclaimLazy keeps a released volume until its room is needed.
	ReclaimLazy Reclaim = "lazy"
	// ReclaimImmediate removes a released volume at once.
	ReclaimImmediate Reclaim = "immediate"
)

// ParseReclaim checks a Reclaim; empty means ReclaimLazy. The error is a
// *volume.FieldError.
func ParseReclaim(field, s string) (Reclaim, error) {
	return oneOf(field, s, ReclaimLazy, ReclaimImmediate)
}

// OnNodeLoss is what becomes of a claim whose Node was deleted from the API.
type OnNodeLoss string

const (
	// OnNodeLossKeep leaves the claim: the node may come back with its disk.
	OnNodeLossKeep OnNodeLoss = "keep"
	// OnNodeLossRelease gives the claim up, so that its pod can start elsewhere.
	OnNodeLossRelease OnNodeLoss = "release"
)

// ParseOnNodeLoss checks an OnNodeLoss; empty means OnNodeLossKeep. The error is
// a *volume.FieldError.
func ParseOnNodeLoss(field, s string) (OnNodeLoss, error) {
	return oneOf(field, s, OnNodeLossKeep, OnNodeLossRelease)
}

// oneOf reads one of the values allowed; the first is the default.
func oneOf[T ~string](field, s string, allowed ...T) (T, error) {
	if s == "" {
		return allowed[0], nil
	}
	names := make([]string, len(allowed))
	for i, a := range allowed {
		if string(a) == s {
			return a, nil
		}
		names[i] = string(a)
	}
	return "", &volume.FieldError{
		Field:  field,
		Value:  s,
		Reason: fmt.Sprintf("is not known; it is one of %s", strings.Join(names, ", ")),
	}
}
