package dataset

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
)

// groupMissing reports whether a node reports that the volume group of a PersistentVolume is not there: another machine
// may have the node's name now, or a disk is missing. Without a report or a UUID, that is not known.
func (r *reconciler) groupMissing(node string, volume *corev1.PersistentVolume) bool {
	if r.Report == nil || node == "" {
		return false
	}
	report := r.Report(node)
	parsed, err := persistentvolume.Parse(volume)
	if err != nil || parsed.GroupUUID == "" || report == nil {
		return false
	}
	if len(report.Status.Pools) == 0 { // also in the status of a node whose first rounds fail
		ready := meta.FindStatusCondition(report.Status.Conditions, flexlvmv1.ConditionReady)
		return ready != nil && ready.Reason == flexlvmv1.ReasonNoPools
	}
	return !slices.ContainsFunc(report.Status.Pools, func(p flexlvmv1.Pool) bool { return p.UUID == parsed.GroupUUID })
}

// missing returns what to do about a replica whose volume group is missing. It is not deleted, because the group may
// only be late, as after a boot.
func (p *planner) missing(r *Replica) string {
	after := "and it is loaded again"
	if p.isWritten(r.Claim) {
		after = "which gives up what consumers wrote"
	}
	return fmt.Sprintf("node %s does not report the volume group that it is in, so no pod is sent there for it: check the disks of the node; if another machine has the name of the node now, delete claim %s, %s", r.Node, r.Claim.Name, after)
}

// withoutMissing returns the message of a loader's last status, or an empty string if that was that the volume group is
// missing: the group may be back.
func (p *planner) withoutMissing(r *Replica, message string) string {
	if strings.HasSuffix(message, p.missing(r)) {
		return ""
	}
	return message
}
