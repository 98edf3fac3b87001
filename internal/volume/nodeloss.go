package volume

// OnNodeLoss is what happens to a claim whose Node was deleted from the API.
type OnNodeLoss string

const (
	// OnNodeLossKeep leaves the claim: the node may come back with its disk.
	OnNodeLossKeep OnNodeLoss = "keep"
	// OnNodeLossRelease releases the claim, so that its pod can start elsewhere.
	OnNodeLossRelease OnNodeLoss = "release"
)

// ParseOnNodeLoss checks an OnNodeLoss; empty means OnNodeLossKeep. The error is
// a *FieldError.
func ParseOnNodeLoss(field, s string) (OnNodeLoss, error) {
	return oneOf(field, s, OnNodeLossKeep, OnNodeLossRelease)
}
