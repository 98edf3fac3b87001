package dataset

import (
	"maps"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/replica"
)

// Values of annotationResync.
const (
	resyncNone   = "none"
	resyncUpload = "upload"
)

const (
	// Finalizer keeps a VolumeManager until all that was made for it is gone: labels of
	// nodes and PersistentVolumes cannot have an owner in a namespace.
	Finalizer = "flexlvm.io/dataset"
	// AnnotationRetry on a VolumeManager: when its value changes, failed loads are
	// retried.
	AnnotationRetry = "flexlvm.io/retry"

	// labelReplica holds the number of a replica, on its claim, its Job and its pods.
	labelReplica = "flexlvm.io/replica"
	// labelRole holds what a Job is for.
	labelRole = "flexlvm.io/role"
	// annotationLoad holds Source.Load, on a claim: what it is filled with.
	annotationLoad = "flexlvm.io/load"
	// annotationLoaded holds a protocol.Status, on a claim from when it is complete.
	annotationLoaded = "flexlvm.io/loaded"
	// annotationTook holds how long after it was made a claim was complete.
	annotationTook = "flexlvm.io/time-to-ready"
	// annotationAffinity holds affinityDigest of the volume's nodeAffinity, on a claim: the one
	// that its node is known to have matched.
	annotationAffinity = "flexlvm.io/node-affinity"
	// annotationUnmatched is since when the node of a claim does not match nodeAffinity, in
	// RFC 3339; empty or missing if it does.
	annotationUnmatched = "flexlvm.io/unmatched-since"
	// annotationEndpoint holds the server that a claim's data is from, since that is part of
	// what it holds: annotationLoad of a claim without it knows no server.
	annotationEndpoint = "flexlvm.io/endpoint"
	// annotationResync on a claim says what resync was when it was made. A claim without it
	// is of a flexlvm to which resync meant what refresh means now.
	annotationResync = "flexlvm.io/resync"
	// annotationFinal on a claim that is being deleted holds how far its mirror was when no
	// pod used it any more, as RUN/PASSES.
	annotationFinal = "flexlvm.io/final-upload"
	// finalizerMirror keeps a claim until what is in it was uploaded.
	finalizerMirror = "flexlvm.io/mirror"
	// annotationNode on a claim names the node that the replica is for, with replicas: All.
	annotationNode = "flexlvm.io/for-node"
	// annotationDisplaceable on the claim of a complete replica: other datasets may displace it.
	annotationDisplaceable = "flexlvm.io/displaceable"
	// annotationLastRead on such a claim is about when a pod read it last, in RFC 3339.
	annotationLastRead = "flexlvm.io/last-read"
	// annotationDisplacedBy on such a claim names the dataset that asks for its room; empty or
	// missing if none does.
	annotationDisplacedBy = "flexlvm.io/displaced-by"
	// annotationDisplacing on such a claim is when its node was seen without the label.
	annotationDisplacing = "flexlvm.io/displacing-since"
	// annotationMakesRoom on a claim is when others were asked to make way for it.
	annotationMakesRoom = "flexlvm.io/makes-room"
	// annotationWasDisplaced on a claim is when it was made in place of one that was displaced.
	annotationWasDisplaced = "flexlvm.io/was-displaced"
	// annotationPeersFailed on a claim is when copying it from peers failed: from then on it
	// is loaded from its source.
	annotationPeersFailed = "flexlvm.io/peers-failed"
	// annotationPeers on a Job that copies from peers names their claims, with commas between.
	annotationPeers = "flexlvm.io/peers"
	// annotationRefreshed names the replica.AnnotationRefresh that a claim was refreshed for last,
	// or that there was when a Job was made.
	annotationRefreshed = "flexlvm.io/refreshed"
	// annotationRefreshedAt on a claim is when that ended, in RFC 3339.
	annotationRefreshedAt = "flexlvm.io/refreshed-at"
	// annotationVersions on the claim of a replica: it was made to hold versions. One of an
	// earlier flexlvm has none, whatever its readers' PersistentVolume says by now.
	annotationVersions = "flexlvm.io/versions"
	// annotationVisit on a claim is the UID of the last visit whose result is written down.
	annotationVisit = "flexlvm.io/visit"
	// annotationAttempt on a Job tells apart the loads that a person asked for.
	annotationAttempt = "flexlvm.io/attempt"
	// annotationMade on a Job is when it was made by the clock of the controller, in RFC 3339.
	annotationMade = "flexlvm.io/made-at"
	// annotationClaimUID on a Job holds the UID of the claim that it fills.
	annotationClaimUID = "flexlvm.io/claim-uid"
	// annotationWatch on a Job that uploads is since when the controller that made it has looked for
	// pods without a pause, which also tells its process apart from others.
	annotationWatch = "flexlvm.io/watched-since"
)

// Roles of Jobs.
const (
	roleLoad   = "load"  // fills a replica
	roleVisit  = "visit" // mounts a complete replica, to let it grow or to look for news
	roleUpload = "put"   // uploads
	// roleServe serves a complete replica to the loaders of others.
	roleServe = "serve"
	// roleMirror uploads what changes, for ever.
	roleMirror = "mirror"
)

// maxBase leaves room in 52 characters for the number of a replica: the names of
// Jobs go into labels of their pods, and get some more characters there.
const maxBase = 46

func base(owner, id string) string { return replica.Short(owner+"-"+id, maxBase) }

// replicaName is the name of a replica's claim and of its Job.
func replicaName(owner, id string, index int) string {
	return base(owner, id) + "-" + strconv.Itoa(index)
}

// uploadName is the name of the Job that uploads.
func uploadName(owner, id string) string { return base(owner, id) + "-put" }

// metaOf is what all objects of a volume carry.
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

// isOurs reports whether a claim was made since resync means what it meant in VCK, or
// holds what consumers wrote, which no flexlvm ever fetched over.
func isOurs(claim client.Object) bool {
	a := claim.GetAnnotations()
	return a[annotationResync] != "" || a[replica.AnnotationWritable] != ""
}

// belongs reports whether an object was made for this volume.
func belongs(object client.Object, owner *flexlvmv1.VolumeManager, id string) bool {
	return object.GetLabels()[replica.LabelOwner] == string(owner.UID) && object.GetAnnotations()[replica.AnnotationVolumeID] == id
}
