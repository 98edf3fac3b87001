package eviction

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// A Step is the daemon's part in the eviction of a replica. The controller of
// datasets has the others: it takes the label from the node once a replica was
// asked to go (StepAsk), and deletes its claim once nobody uses it (StepConfirm).
type Step string

const (
	// StepAsk: ask for the replica to go.
	StepAsk Step = "ask"
	// StepConfirm: no pod is sent here for the dataset any more. Where none of this
	// node uses the replica, say so; it cannot be taken back after that.
	StepConfirm Step = "confirm"
	// StepWithdraw: the room is not needed any more, or somebody uses the replica:
	// take back what was asked.
	StepWithdraw Step = "withdraw"
)

// A Move is a Step that is due for a replica.
type Move struct {
	Step  Step
	Claim Claim
	Why   string
}

// Steps says what is due for the replicas of a node, by what the plan wants of
// them, in order of their PersistentVolumes' names. What is past its confirmation
// goes its way; what is given up already is Judge's.
func Steps(view View, r Result) []Move {
	if !view.PodsKnown || view.Cluster == "" {
		return nil
	}
	why := make(map[string]string, len(r.ReplicaEvictions))
	for _, f := range r.ReplicaEvictions {
		why[f.Claim.PV] = f.Message
	}
	var out []Move
	for i := range view.Claims {
		c := &view.Claims[i]
		e := c.Replica
		if e.Dataset == "" || c.Cluster != view.Cluster || c.Phase != corev1.VolumeBound || c.Deleting || e.Going() {
			continue
		}
		cause, wanted := why[c.PV]
		begun := e.Begun()
		switch {
		case begun && !wanted:
			out = append(out, Move{Step: StepWithdraw, Claim: *c, Why: "its room is not needed any more, or it is used again"})
		case begun && e.Unlabelled.IsZero(): // the controller's turn
		case begun:
			out = append(out, Move{Step: StepConfirm, Claim: *c, Why: cause})
		case wanted:
			out = append(out, Move{Step: StepAsk, Claim: *c, Why: cause})
		}
	}
	slices.SortFunc(out, func(a, b Move) int {
		return cmp.Or(cmp.Compare(a.Claim.PV, b.Claim.PV), cmp.Compare(a.Claim.UID, b.Claim.UID))
	})
	return out
}
