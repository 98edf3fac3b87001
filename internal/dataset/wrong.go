package dataset

import (
	"slices"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/replica"
)

// wrong is the outcome of a volume that cannot be read. Which replicas were displaced and which loads
// failed for good is remembered by its status alone, so that stays. If the spec is the one that could
// be read before, as where its StorageClass is missing for a moment, replicas serve as before.
func wrong(observed *Observed, err error) Outcome {
	v, old := observed.Config, observed.before()
	status := *old.DeepCopy() // the API server's answer is written over what is in an outcome
	serving := min(old.ReadyReplicas, observed.serving())
	if serving == 0 || observed.Owner.Status.ObservedGeneration != observed.Owner.Generation {
		serving = 0
		status = flexlvmv1.VolumeStatus{
			ID: v.ID, Replicas: max(0, int32(v.Replicas)),
			Nodes: status.Nodes, States: status.States, Failures: status.Failures, Uploaded: status.Uploaded,
		}
	}
	if len(observed.Replicas) > 0 {
		status.Uploaded = "" // consumers may have written since
	}
	status.ReadyReplicas, status.Message = serving, err.Error()
	return Outcome{Status: status, Loaded: serving, Failed: true, Again: whileIdle}
}

// serving is how many replicas are complete on nodes that carry the label.
func (s *Observed) serving() (count int32) {
	for _, r := range s.Replicas {
		if r.Claim != nil && !going(r.Claim) && r.Claim.Annotations[replica.AnnotationComplete] != "" && slices.Contains(s.Labelled, r.Node) {
			count++
		}
	}
	return count
}
