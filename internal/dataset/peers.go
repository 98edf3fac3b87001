package dataset

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/replica"
)

const (
	// maxPeers bounds the number of peers that a loader copies from.
	maxPeers = 8
	// peerServerStartTime is how long the server of a peer may take to start, and a loader on its replica to end
	// before. After that, other replicas are loaded from the source, as if the peer did not exist.
	peerServerStartTime = 2 * time.Minute
)

// peering is the state of copying between replicas. A replica copies from all that serve, and as many copy at
// the same time as serve, so that the number of complete replicas doubles each time.
type peering struct {
	digest    string       // of the content that is copied; empty if no replica can serve
	ready     []int        // replicas that serve
	coming    bool         // other replicas will serve soon
	servers   map[int]bool // replicas that are to serve
	copying   int          // number of loaders that copy
	atSource  int          // number of loaders that may ask the source
	rotations int
}

// peering computes the state from all replicas of the volume.
func (p *planner) peering() peering {
	out := peering{servers: map[int]bool{}}
	if p.Source.Peers == "" {
		return out
	}
	named, wanting := map[string]bool{}, 0
	for _, index := range p.indexes() {
		r := p.Replicas[index]
		if p.wantsPeers(index, r) {
			wanting++
		}
		if r != nil && !stuck(r, p.Now) {
			out.countLoader(r, p.isComplete(index, r), named)
		}
	}
	var able []int
	able, out.digest = p.ableToServePeers()
	out.choose(p, able, named, wanting)
	for _, index := range able {
		if out.servers[index] {
			out.countPeerServer(index, p.Replicas[index], p.Now)
		}
	}
	return out
}

// countLoader counts a replica's loader as copying or as asking the source, if it runs, refreshes, or has
// succeeded before the replica is recorded as complete. It adds the claims that the loader copies from to
// named.
func (o *peering) countLoader(r *Replica, complete bool, named map[string]bool) {
	succeeded, _, _ := jobResult(r.Job)
	working := r.Job != nil && r.Job.Labels[labelRole] == roleLoad && (jobEndTime(r.Job).IsZero() || succeeded && !complete)
	switch {
	case working && copies(r.Job):
		o.copying++
		for _, claim := range strings.Split(r.Job.Annotations[annotationPeers], ",") {
			named[claim] = true
		}
	case working || r.Busy || isRefreshing(r):
		o.atSource++
	}
}

// countPeerServer counts a replica that is to serve as ready or coming.
func (o *peering) countPeerServer(index int, r *Replica, now time.Time) {
	if isPeerServer(r) && jobEndTime(r.Job).IsZero() && ready(r.Pod) && r.Pod.Status.PodIP != "" {
		o.ready = append(o.ready, index)
		return
	}
	o.coming = o.coming || startsServingPeersSoon(r, now)
}

// startsServingPeersSoon reports whether it is worth waiting for a replica that is to serve and does not yet: a
// refresh takes hours, and on a node that is down a Job never ends.
func startsServingPeersSoon(r *Replica, now time.Time) bool {
	switch {
	case r.Job == nil:
		return !r.Busy
	case isDeleting(r.Job):
		return r.Job.Labels[labelRole] != rolePeerServer && now.Sub(r.Job.DeletionTimestamp.Time) < peerServerStartTime
	case jobEndTime(r.Job).IsZero():
		return now.Sub(r.Job.CreationTimestamp.Time) < peerServerStartTime
	}
	return r.Job.Labels[labelRole] != rolePeerServer // the Job is deleted in this plan
}

// isVisited reports whether a complete replica has a loader that runs or is being deleted. It has to be gone
// before the replica can serve.
func isVisited(r *Replica) bool {
	if r.Job == nil {
		return r.Busy
	}
	return r.Job.Labels[labelRole] != rolePeerServer && (isDeleting(r.Job) || jobEndTime(r.Job).IsZero())
}

// isPeerServer reports whether a replica has a Job that serves it.
func isPeerServer(r *Replica) bool {
	return r.Job != nil && r.Job.Labels[labelRole] == rolePeerServer && !isDeleting(r.Job)
}

// choose selects the replicas that are to serve: those that others copy from, and then up to the number wanted,
// first those that serve already, and last those that are visited.
func (o *peering) choose(p *planner, able []int, named map[string]bool, wanting int) {
	for _, index := range able {
		if named[p.Replicas[index].Claim.Name] {
			o.servers[index] = true
		}
	}
	ranked := slices.Clone(able)
	slices.SortStableFunc(ranked, func(a, b int) int { return cmp.Compare(serverRank(p.Replicas[a]), serverRank(p.Replicas[b])) })
	for _, index := range ranked {
		if len(o.servers) < wanting {
			o.servers[index] = true
		}
	}
}

// serverRank ranks the replicas that could serve; lower ranks are chosen first.
func serverRank(r *Replica) int {
	switch {
	case isPeerServer(r):
		return 0
	case !isVisited(r):
		return 1
	}
	return 2
}

// wantsPeers reports whether a replica is to be copied, or is about to be.
func (p *planner) wantsPeers(index int, r *Replica) bool {
	if !p.isWanted(index) || p.assignments == nil && index >= p.nodes+maxAhead {
		return false
	}
	claim := replicaName(p.Owner.Name, p.Config.ID, index)
	switch p.remembered(index, claim).State {
	case flexlvmv1.ReplicaFailed, flexlvmv1.ReplicaDisplaced:
		return false
	}
	if r == nil || r.Claim == nil {
		return true
	}
	return !p.isComplete(index, r) && r.Claim.Annotations[annotationPeersFailed] == "" && !stuck(r, p.Now)
}

// stuck reports whether no node accepts a replica's loader, or the node that has it does not answer or lacks the
// replica's volume group. Such a loader may never start or end, so it does not count against the number of loaders
// that work at the same time. Its own replica still waits for it: it may be running.
func stuck(r *Replica, now time.Time) bool {
	if r.GroupMissing {
		return true
	}
	if r.Pod == nil || r.Job == nil {
		return false
	}
	if r.NodeNotReady || isDeleting(r.Pod) && now.Sub(r.Pod.DeletionTimestamp.Time) >= beforeDisplacing {
		return true
	}
	return now.Sub(r.Pod.CreationTimestamp.Time) >= beforeDisplacing && slices.ContainsFunc(r.Pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse
	})
}

// ableToServePeers returns the complete replicas that stay and hold the same content: that of most of them, if the
// source changed in between.
func (p *planner) ableToServePeers() (able []int, digest string) {
	holders := map[string][]int{}
	for _, index := range p.indexes() {
		r := p.Replicas[index]
		if r == nil || !p.isWanted(index) || !p.isComplete(index, r) || isDeleting(r.Claim) || p.outdated(index, r) != "" ||
			r.Volume == nil || r.Node == "" || r.GroupMissing || r.Volume.Annotations[replica.AnnotationEvict] != "" || r.Claim.Annotations[annotationDisplacedBy] != "" {
			continue
		}
		held := loadedReport(r.Claim).Index
		if held == "" {
			continue
		}
		holders[held] = append(holders[held], index)
		if len(holders[held]) > len(able) {
			able, digest = holders[held], held
		}
	}
	return able, digest
}

// begin creates a replica's loader when its turn comes, unless the replica's volume group is missing: one that copies
// from peers, or one that asks the source.
func (p *planner) begin(index int, r *Replica, status *flexlvmv1.ReplicaStatus) {
	status.State, status.Message = flexlvmv1.ReplicaWaiting, "its loader is being created"
	task, o := p.task(index, r.Claim), &p.peers
	alone := p.Source.Peers == "" || r.Claim.Annotations[annotationPeersFailed] != ""
	switch {
	case r.GroupMissing: // its loader could not start
		status.Message = p.missing(r)
	case p.growing(r):
		status.Message = "its volume grows first"
	case !alone && o.copying < len(o.ready):
		o.copying++
		p.do(Action{Verb: Create, Object: task.copy(p.copyFrom())})
	case !alone && (len(o.ready) > 0 || o.coming):
		status.Message = "it waits for a replica that it can be copied from"
	case p.Source.Peers != "" && o.atSource >= p.Source.SourceLoaders:
		status.Message = fmt.Sprintf("it waits for its turn: %d of its dataset's loaders ask the source, and sourceLoaders is %d", o.atSource, p.Source.SourceLoaders)
	default:
		o.atSource++
		p.do(Action{Verb: Create, Object: task.load()})
	}
}

// copyFrom returns the peers of the next loader, each time starting with another one.
func (p *planner) copyFrom() copying {
	o := &p.peers
	out := copying{digest: o.digest, refreshRequest: p.refreshRequest()}
	for i := range min(len(o.ready), maxPeers) {
		r := p.Replicas[o.ready[(i+o.rotations)%len(o.ready)]]
		out.claims, out.addresses = append(out.claims, r.Claim.Name), append(out.addresses, r.Pod.Status.PodIP)
		if r.Claim.Annotations[annotationRefreshed] != out.refreshRequest {
			out.refreshRequest = "" // the copied content may be older than the refresh asked for
		}
	}
	o.rotations++
	return out
}

// peersFailed reports whether a replica's loader reported that it could not copy the replica. A loader that was
// killed reports nothing, and is started again.
func (p *planner) peersFailed(r *Replica) bool {
	if !copies(r.Job) || isDeleting(r.Job) {
		return false
	}
	_, failed, _ := jobResult(r.Job)
	_, ran := r.firstLoaderStartTime()
	return ran && (failed || r.Pod != nil && r.Pod.Status.Phase == corev1.PodFailed && reportOf(r.Pod) != nil)
}

// giveUpPeers has a replica loaded from the source. What was copied so far is kept.
func (p *planner) giveUpPeers(r *Replica, status *flexlvmv1.ReplicaStatus) {
	_, _, why := jobResult(r.Job)
	message := "it could not be copied from other replicas, and is loaded from its source: " + failure(r.Pod, why)
	status.State, status.Message = flexlvmv1.ReplicaWaiting, message
	p.do(
		Action{Verb: Annotate, Object: r.Claim, Annotations: map[string]string{annotationPeersFailed: p.Now.UTC().Format(time.RFC3339)},
			Reason: "PeersFailed", Message: "claim " + r.Claim.Name + ": " + message},
		Action{Verb: Delete, Object: r.Job},
	)
}

// planPeerServer plans the server of a complete replica, and reports whether its Job is used for that. The
// server's mount also lets kubelet grow the volume.
func (p *planner) planPeerServer(index int, r *Replica, status *flexlvmv1.ReplicaStatus) bool {
	hasServerJob := r.Job != nil && r.Job.Labels[labelRole] == rolePeerServer
	wanted := p.peers.servers[index] && status.State == flexlvmv1.ReplicaComplete
	if !hasServerJob && (!wanted || isVisited(r)) {
		return false
	}
	p.requeueAfter(whileLoading)
	switch {
	case isPeerServer(r) && !wanted:
		p.do(Action{Verb: Delete, Object: r.Job})
	case !wanted:
	case r.Job == nil:
		p.do(Action{Verb: Create, Object: p.task(index, r.Claim).peerServerJob()})
	case isDeleting(r.Job) || jobEndTime(r.Job).IsZero(): // it serves, or has not ended
	case hasServerJob:
		_, _, why := jobResult(r.Job)
		status.Message = "it cannot be copied: " + failure(r.Pod, why)
		p.recreateLater(r.Job)
	default:
		p.visited(r, status) // only this Job has the result, which is what others copy
		p.do(Action{Verb: Delete, Object: r.Job})
		return true
	}
	p.keepStale(index, r, status)
	return true
}
