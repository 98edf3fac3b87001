package eviction

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/persistentvolume"
)

// A Step is the daemon's part in the eviction of a replica. The dataset controller does the rest: it removes
// the label from the node after StepAsk, and deletes the replica's claim after StepConfirm.
type Step string

const (
	// StepAsk: request the eviction.
	StepAsk Step = "ask"
	// StepConfirm: no new pods are sent here for the dataset. If no pod of this node uses the replica, record
	// that; the eviction cannot be withdrawn afterwards.
	StepConfirm Step = "confirm"
	// StepWithdraw: the room is no longer needed, or the replica is in use: withdraw the
	// request.
	StepWithdraw Step = "withdraw"
)

// A Move is a Step that is due for a replica.
type Move struct {
	Step             Step
	PersistentVolume persistentvolume.Volume
	Why              string
}

// Steps returns the steps that are due for the replicas of a node under the plan r, in order of their
// PersistentVolumes' names. Replicas whose eviction is confirmed need no step; Judge deals with released ones.
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
		if e.Dataset == "" || c.Cluster != view.Cluster || c.Phase != corev1.VolumeBound || c.Deleting || e.EvictionCommitted() {
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
	slices.SortFunc(out, func(a, b Move) int { return comparePV(a.PersistentVolume, b.PersistentVolume) })
	return out
}
