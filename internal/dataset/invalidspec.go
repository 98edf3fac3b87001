package dataset

import (
	"slices"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/replica"
)

// invalidSpec returns the outcome for a volume whose spec cannot be used. Only its status records which replicas were
// displaced and which loads failed permanently, so these stay. If the spec has not changed since the last
// status, for example when its StorageClass is missing for a moment, replicas stay usable.
func invalidSpec(observed *Observed, err error) Outcome {
	v, old := observed.Config, observed.before()
	status := *old.DeepCopy() // Update overwrites what an outcome points to with the API server's answer
	labelled := min(old.ReadyReplicas, observed.countLabelled())
	if labelled == 0 || observed.Owner.Status.ObservedGeneration != observed.Owner.Generation {
		labelled = 0
		status = flexlvmv1.VolumeStatus{
			ID: v.ID, Replicas: max(0, int32(v.Replicas)),
			Nodes: status.Nodes, States: status.States, Failures: status.Failures, Uploaded: status.Uploaded,
		}
	}
	if len(observed.Replicas) > 0 {
		status.Uploaded = "" // consumers may have written since
	}
	status.ReadyReplicas, status.Message = labelled, err.Error()
	return Outcome{Status: status, Loaded: labelled, Failed: true, RequeueAfter: whileIdle}
}

// countLabelled returns the number of complete replicas on nodes that carry the label.
func (s *Observed) countLabelled() (count int32) {
	for _, r := range s.Replicas {
		if r.Claim != nil && !isDeleting(r.Claim) && r.Claim.Annotations[replica.AnnotationComplete] != "" && slices.Contains(s.Labelled, r.Node) {
			count++
		}
	}
	return count
}
