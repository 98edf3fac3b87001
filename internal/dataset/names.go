package dataset

import (
	"maps"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/replica"
)

// resyncUpload is the value of annotationResync.
const resyncUpload = "upload"

const (
	// Finalizer keeps a VolumeManager until everything created for it is gone: node labels and
	// PersistentVolumes are not garbage-collected with an owner in a namespace.
	Finalizer = "flexlvm.io/dataset"
	// AnnotationRetry on a VolumeManager: when its value changes, failed loads are
	// retried.
	AnnotationRetry = "flexlvm.io/retry"

	// labelReplica is the number of a replica, on its claim, its Job and its pods.
	labelReplica = "flexlvm.io/replica"
	// labelRole is the role of a Job.
	labelRole = "flexlvm.io/role"
	// annotationLoad on a claim is Source.Load of what it is filled with.
	annotationLoad = "flexlvm.io/load"
	// annotationLoaded on a complete claim is a protocol.Status.
	annotationLoaded = "flexlvm.io/loaded"
	// annotationTook on a claim is how long after its creation it was complete.
	annotationTook = "flexlvm.io/time-to-ready"
	// annotationAffinity on a claim is affinityDigest of the nodeAffinity that its node was chosen by, or has
	// matched since.
	annotationAffinity = "flexlvm.io/node-affinity"
	// annotationUnmatched on a claim is since when its node has not matched nodeAffinity, in RFC 3339; empty or
	// missing if it matches.
	annotationUnmatched = "flexlvm.io/unmatched-since"
	// annotationResync is upload on the claim of a mirrored volume.
	annotationResync = "flexlvm.io/resync"
	// annotationFinal on a claim that is being deleted is the state of its mirror, as RUN/PASSES, when no pod
	// used the claim any more.
	annotationFinal = "flexlvm.io/final-upload"
	// finalizerMirror keeps a claim until its content is uploaded.
	finalizerMirror = "flexlvm.io/mirror"
	// annotationNode on a claim names the node that the replica is for, with replicas: All.
	annotationNode = "flexlvm.io/for-node"
	// annotationDisplaceable on the claim of a complete replica: other datasets may displace it.
	annotationDisplaceable = "flexlvm.io/displaceable"
	// annotationLastRead on such a claim is about when a pod last read it, in RFC 3339.
	annotationLastRead = "flexlvm.io/last-read"
	// annotationDisplacedBy on such a claim names the dataset that needs its room; empty or missing if none
	// does.
	annotationDisplacedBy = "flexlvm.io/displaced-by"
	// annotationDisplacing on such a claim is when its node was observed without the label.
	annotationDisplacing = "flexlvm.io/displacing-since"
	// annotationMakesRoom on a claim is when others were asked to make way for it.
	annotationMakesRoom = "flexlvm.io/makes-room"
	// annotationWasDisplaced on a claim is when it was created to replace a displaced one.
	annotationWasDisplaced = "flexlvm.io/was-displaced"
	// annotationPeersFailed on a claim is when copying it from peers failed: since then it is loaded from its
	// source.
	annotationPeersFailed = "flexlvm.io/peers-failed"
	// annotationPeers on a Job that copies from peers names the claims of the peers, separated by commas.
	annotationPeers = "flexlvm.io/peers"
	// annotationRefreshed is a digest of replica.AnnotationRefresh: on a claim the one that it was last
	// refreshed for, on a Job the one at its creation.
	annotationRefreshed = "flexlvm.io/refreshed"
	// annotationRefreshedAt on a claim is when its last refresh ended, in RFC 3339.
	annotationRefreshedAt = "flexlvm.io/refreshed-at"
	// annotationVisit on a claim is the UID of the last visit whose result is recorded.
	annotationVisit = "flexlvm.io/visit"
	// annotationAttempt on a Job identifies the load that it is for, see attempt.
	annotationAttempt = "flexlvm.io/attempt"
	// annotationMade on a Job is its creation time by the clock of the controller, in RFC 3339.
	annotationMade = "flexlvm.io/made-at"
	// annotationClaimUID on a Job is the UID of the claim that it fills.
	annotationClaimUID = "flexlvm.io/claim-uid"
	// annotationWatch on an upload's Job is since when the controller that created it had listed pods without a
	// pause. It also tells that process apart from others.
	annotationWatch = "flexlvm.io/watched-since"
)

// Roles of Jobs.
const (
	roleLoad   = "load"  // fills a replica
	roleVisit  = "visit" // mounts a complete replica, to let it grow or to check its source
	roleUpload = "put"   // uploads
	// rolePeerServer serves a complete replica to the loaders of others.
	rolePeerServer = "serve"
	// roleMirror uploads what changes, without end.
	roleMirror = "mirror"
)

// maxBase leaves room in 52 characters for the number of a replica: the name of a Job, with some more
// characters, becomes a label of its pods.
const maxBase = 46

func base(owner, id string) string { return replica.Short(owner+"-"+id, maxBase) }

// replicaName returns the name of a replica's claim and of its Job.
func replicaName(owner, id string, index int) string {
	return base(owner, id) + "-" + strconv.Itoa(index)
}

// uploadName returns the name of the Job that uploads.
func uploadName(owner, id string) string { return base(owner, id) + "-put" }

// metaOf returns the metadata that all objects of a volume have in common.
func metaOf(owner *flexlvmv1.VolumeManager, v flexlvmv1.VolumeConfig, name string) metav1.ObjectMeta {
	labels := map[string]string{}
	for key, value := range v.Labels {
		labels[key] = string(value)
	}
	maps.Copy(labels, map[string]string{
		replica.LabelOwner:   string(owner.UID),
		replica.LabelDataset: hash(owner, v.ID),
	})
	return metav1.ObjectMeta{
		Namespace: owner.Namespace, Name: name, Labels: labels,
		Annotations:     map[string]string{replica.AnnotationVolumeID: v.ID},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, flexlvmv1.GroupVersion.WithKind(replica.OwnerKind))},
	}
}

func hash(owner *flexlvmv1.VolumeManager, id string) string {
	return replica.Hash(owner.Namespace, string(owner.UID), id)
}

// belongs reports whether an object was created for this volume.
func belongs(object client.Object, owner *flexlvmv1.VolumeManager, id string) bool {
	return object.GetLabels()[replica.LabelOwner] == string(owner.UID) && object.GetAnnotations()[replica.AnnotationVolumeID] == id
}
