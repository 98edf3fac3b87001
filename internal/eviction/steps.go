package eviction

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/persistentvolume"
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
	Step             Step
	PersistentVolume persistentvolume.Volume
	Why              string
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
		why[f.PersistentVolume.PV] = f.Message
	}
	var out []Move
	for i := range view.PersistentVolumes {
		c := &view.PersistentVolumes[i]
		e := c.Replica
		if e.Dataset == "" || c.Cluster != view.Cluster || c.Phase != corev1.VolumeBound || c.Deleting || e.Going() {
			continue
		}
		cause, wanted := why[c.PV]
		begun := e.Begun()
		switch {
		case begun && !wanted:
			out = append(out, Move{Step: StepWithdraw, PersistentVolume: *c, Why: "its room is not needed any more, or it is used again"})
		case begun && e.Unlabelled.IsZero(): // the controller's turn
		case begun:
			out = append(out, Move{Step: StepConfirm, PersistentVolume: *c, Why: cause})
		case wanted:
			out = append(out, Move{Step: StepAsk, PersistentVolume: *c, Why: cause})
		}
	}
	slices.SortFunc(out, func(a, b Move) int {
		return cmp.Or(cmp.Compare(a.PersistentVolume.PV, b.PersistentVolume.PV), cmp.Compare(a.PersistentVolume.UID, b.PersistentVolume.UID))
	})
	return out
}
