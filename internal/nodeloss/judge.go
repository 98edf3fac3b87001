package nodeloss

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A nodeIdentity holds the names by which a volume may refer to a node of the API.
type nodeIdentity struct{ name, hostname string }

// A localVolume is a flexlvm PersistentVolume that is tied to one node.
type localVolume struct {
	object    *corev1.PersistentVolume
	claim     *corev1.PersistentVolumeClaim // bound to the volume; nil: none is known
	node      string                        // the value of its label pv.LabelNode
	hostnames []string                      // the nodes that its affinity names
}

// observed is the input of judge. It identifies nodes by the value of pv.LabelNode, because the name
// of a node cannot be recovered from a value that was cut and hashed.
type observed struct {
	nodes   []nodeIdentity // all nodes of the API
	volumes []localVolume
	missed  map[string]time.Time // when nodes were first missed
	doubted time.Time            // when the API was last in doubt
	now     time.Time
	grace   time.Duration
}

// finding is the result of judging an observed: which nodes are lost, and what to do with their
// volumes.
type finding struct {
	missed   map[string]time.Time // for the next round
	doubted  time.Time            // for the next round
	doubt    string               // why the API is not trusted, and so nothing is given up; or empty
	lost     []string             // nodes that have been missing for the grace period
	verdicts []verdict            // in order of the PersistentVolumes' names
}

// action is what to do about a volume of a lost node.
type action string

const (
	// lossTell: change nothing, and send an event with what a person can do.
	lossTell action = "tell"
	// lossReleaseClaim: delete the claim.
	lossReleaseClaim action = "release claim"
	// lossGiveUp: remove flexlvm's finalizer from the PersistentVolume and delete it, because no node daemon
	// can.
	lossGiveUp action = "give up"
)

// Reasons of the events. People search for them.
const (
	eventNodeLost      = "NodeLost"
	eventNodeLossDoubt = "NodeLossInDoubt"
	eventClaimReleased = "ClaimReleased"
	eventVolumeGivenUp = "VolumeGivenUp"
)

// A verdict is what to do about one volume.
type verdict struct {
	volume localVolume
	action action
	reason string // of the event
	why    string // the message of the event
}

// localVolumeOf returns the parts of a PersistentVolume that judge needs, and whether it is certainly a volume
// of flexlvm, of this cluster, on one node. The volume of a dataset's readers is not. A snapshot is one without
// the annotation, because CSI's calls create and delete it.
func localVolumeOf(object *corev1.PersistentVolume, cluster string) (localVolume, bool) {
	provisioned := object.Annotations[pv.AnnotationProvisionedBy] == pv.Provisioner || persistentvolume.IsSnapshot(object)
	if cluster == "" || persistentvolume.Options(object)[volume.OptionCluster] != cluster || !provisioned {
		return localVolume{}, false
	}
	v := localVolume{object: object, node: object.Labels[pv.LabelNode], hostnames: persistentvolume.Hostnames(object)}
	return v, v.node != "" && len(v.hostnames) > 0
}

// boundTo reports whether a claim is the one that a volume is bound to.
func boundTo(claim *corev1.PersistentVolumeClaim, object *corev1.PersistentVolume) bool {
	ref := object.Spec.ClaimRef
	return ref != nil && ref.UID != "" && ref.UID == claim.UID && claim.Spec.VolumeName == object.Name
}

// provisionedByUs reports whether flexlvm may delete a claim at all; the policy provisioner-claims.flexlvm.io
// checks the same.
func provisionedByUs(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Annotations[pv.AnnotationStorageProvisioner] == pv.Provisioner || claim.Annotations[pv.AnnotationStorageProvisionerBeta] == pv.Provisioner
}

// missingNodes returns the nodes that carry volumes and that the API does not have, and the number of nodes
// that carry volumes. A node exists if anything points to it: the label of its volumes, or the hostname that
// one of them is tied to. A missing node does not count if all its volumes are retained: such leftovers would
// add up to a doubt.
func missingNodes(nodes []nodeIdentity, volumes []localVolume) (missing []string, bearing int) {
	known := map[string]bool{}
	for _, n := range nodes {
		known[n.name], known[pv.NodeLabelValue(n.name)] = true, true
		if n.hostname != "" {
			known[n.hostname] = true
		}
	}
	there, atStake := map[string]bool{}, map[string]bool{}
	for _, v := range volumes {
		atStake[v.node] = atStake[v.node] || !v.retained()
		there[v.node] = there[v.node] || known[v.node] || slices.ContainsFunc(v.hostnames, func(h string) bool { return known[h] })
	}
	for _, node := range slices.Sorted(maps.Keys(there)) {
		switch {
		case there[node]:
			bearing++
		case atStake[node]:
			bearing++
			missing = append(missing, node)
		}
	}
	return missing, bearing
}

// retained reports whether only a person may decide about a volume: a snapshot stays until somebody deletes it.
func (v localVolume) retained() bool {
	if persistentvolume.IsSnapshot(v.object) {
		return v.object.DeletionTimestamp == nil
	}
	phase := v.object.Status.Phase
	return (phase == corev1.VolumeReleased || phase == corev1.VolumeFailed) && v.object.DeletionTimestamp == nil &&
		v.object.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete
}

// doubtOf returns why the API is not trusted when nodes are missing, or "". An API server that lost its data or
// was restored from an old backup does not know nodes that exist, and no kubelet registers itself a second
// time.
func doubtOf(nodes []nodeIdentity, missing []string, bearing int) string {
	switch {
	case len(missing) == 0:
		return ""
	case len(nodes) == 0:
		return "the API server knows no node at all"
	case len(missing) >= 2 && 2*len(missing) > bearing:
		return fmt.Sprintf("%d of the %d nodes that carry volumes are missing from the API at once", len(missing), bearing)
	}
	return ""
}

// stillLost is the last check before something is given up: nodes are those that the API has just returned.
func stillLost(node string, nodes []nodeIdentity, volumes []localVolume) bool {
	missing, bearing := missingNodes(nodes, volumes)
	return slices.Contains(missing, node) && doubtOf(nodes, missing, bearing) == ""
}

// judge returns what to do about the volumes of lost nodes. A node is lost once the API has not had it for the
// grace period, whatever its state before. Nodes that the API has are never lost, whatever their state.
func judge(s observed) finding {
	missing, bearing := missingNodes(s.nodes, s.volumes)
	out := finding{missed: map[string]time.Time{}, doubted: s.doubted, doubt: doubtOf(s.nodes, missing, bearing)}
	if out.doubt != "" {
		out.doubted = s.now
	}
	lost := map[string]bool{}
	for _, node := range missing {
		since, known := s.missed[node]
		if !known {
			since = s.now
		}
		out.missed[node] = since
		if s.now.Sub(since) >= s.grace {
			lost[node] = true
			out.lost = append(out.lost, node)
		}
	}
	calm := out.doubted.IsZero() || s.now.Sub(out.doubted) >= s.grace
	for _, v := range s.volumes {
		if !lost[v.node] {
			continue
		}
		if verdict := v.judge(out.doubt); verdict.action != "" && (calm || out.doubt != "") {
			out.verdicts = append(out.verdicts, verdict)
		}
	}
	slices.SortFunc(out.verdicts, func(a, b verdict) int {
		return cmp.Compare(a.volume.object.Name, b.volume.object.Name)
	})
	return out
}

// judge returns what to do about a volume whose node is lost. A verdict without an action means nothing is
// done, mostly because the next step is kube-controller-manager's, or a person's with the policy Retain.
func (v localVolume) judge(doubt string) verdict {
	object := v.object
	verdict := verdict{volume: v}
	switch phase := object.Status.Phase; {
	case phase == corev1.VolumeBound:
		if v.claim == nil || v.claim.DeletionTimestamp != nil {
			return verdict
		}
		verdict.action, verdict.reason, verdict.why = lossTell, eventNodeLost, v.adviceToKeep()
		if on, err := v.onLoss(); err == nil && on == volume.OnNodeLossRelease && provisionedByUs(v.claim) {
			verdict.action, verdict.reason = lossReleaseClaim, eventClaimReleased
			verdict.why = v.evidence() + "; its class says onNodeLoss: release, so the claim is deleted and its data given up. A StatefulSet creates the claim again, empty, and its pod starts on another node"
		}
	case object.DeletionTimestamp != nil:
		// A person has deleted it, and no claim is bound to it.
		if slices.Contains(object.Finalizers, pv.Finalizer) {
			verdict.action, verdict.reason = lossGiveUp, eventVolumeGivenUp
			verdict.why = v.evidence() + ", where nobody is left to take the volume back; as the object was deleted, its finalizer is taken off"
		}
	case (phase == corev1.VolumeReleased || phase == corev1.VolumeFailed) && !v.retained():
		verdict.action, verdict.reason = lossGiveUp, eventVolumeGivenUp
		verdict.why = v.evidence() + ", where nobody is left to take the volume back; as its claim is gone and the reclaim policy is Delete, the object is deleted"
	}
	if verdict.action != "" && doubt != "" {
		verdict.action, verdict.reason = lossTell, eventNodeLossDoubt
		verdict.why = fmt.Sprintf("%s, but %s: the API server may have been restored from an old backup, so nothing is given up. Where the machine is there, start its kubelet again, and it registers. If it is gone for good: %s",
			v.evidence(), doubt, v.commands())
	}
	return verdict
}

// onLoss returns the policy that the class set, or that a person has set since.
func (v localVolume) onLoss() (volume.OnNodeLoss, error) {
	return volume.ParseOnNodeLoss(pv.AnnotationOnNodeLoss, v.object.Annotations[pv.AnnotationOnNodeLoss])
}

func (v localVolume) evidence() string {
	if slices.Equal(v.hostnames, []string{v.node}) {
		return fmt.Sprintf("node %q is gone from the cluster", v.node)
	}
	return fmt.Sprintf("node %q (hostname %q) is gone from the cluster", v.node, v.hostnames[0])
}

// adviceToKeep returns what the owner of a claim that stays should know.
func (v localVolume) adviceToKeep() string {
	c := v.claim
	because := "as its class says (onNodeLoss: keep)"
	switch on, err := v.onLoss(); {
	case err != nil:
		because = fmt.Sprintf("as the annotation of PersistentVolume %s, %v", v.object.Name, err)
	case on != volume.OnNodeLossKeep:
		because = "as flexlvm has not provisioned it"
	}
	advice := fmt.Sprintf("%s, and the data with it. The claim stays, %s: if the node comes back under its name with its disks, nothing is to be done. If it will not, give the data up: kubectl delete pvc -n %s %s --wait=false; then delete the pod that waits for it, and a StatefulSet creates both again on another node",
		v.evidence(), because, c.Namespace, c.Name)
	if v.object.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
		advice += "; the reclaim policy is Retain: kubectl delete pv " + v.object.Name + " --wait=false"
	}
	return advice
}

// commands returns the commands for what is not done because of a doubt.
func (v localVolume) commands() string {
	name := v.object.Name
	commands := fmt.Sprintf("kubectl delete pv %s --ignore-not-found --wait=false; kubectl patch pv %s --type=json -p '[{\"op\":\"remove\",\"path\":\"/metadata/finalizers\"}]'", name, name)
	if v.claim != nil {
		commands = fmt.Sprintf("kubectl delete pvc -n %s %s --wait=false; ", v.claim.Namespace, v.claim.Name) + commands
	}
	return commands
}
