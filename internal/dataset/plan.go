package dataset

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/replica"
)

// When a volume is reconciled again even without a change.
const (
	whileLoading = 3 * time.Second  // for its progress
	whileIdle    = 30 * time.Second // nodes come and go
	// whileShared is for a volume shared by another namespace, whose changes also come through a watch.
	whileShared = 10 * time.Second
	// betweenVisits is the pause before a visit that did not have its intended effect is repeated.
	betweenVisits = time.Minute
)

// Outcome is the plan for a volume, and its status.
type Outcome struct {
	Actions      []Action
	Status       flexlvmv1.VolumeStatus
	Failed       bool          // a person has to do something
	Gone         bool          // no object of it is left
	Former       bool          // the spec no longer names it
	Loaded       int32         // replicas that are complete
	Advice       []string      // messages for users
	RequeueAfter time.Duration // when to reconcile again
	DisplaceFor  []int         // replicas for which others may be displaced
	// Refreshes: the source is checked for changes. Stale lists the replicas that could not be refreshed, and
	// why.
	Refreshes bool
	Stale     []string
}

// Plan returns what to do next. Actions are carried out in order, and none after one that failed, except one
// that the API server denied and that no other depends on. An action that depends on the effect of another
// comes in a later plan, which observes that effect.
func Plan(observed *Observed) Outcome {
	p := &planner{Observed: observed, labels: map[string]bool{}}
	if observed.Wanted && observed.Source.Copies() {
		p.assignReplicas()
	} else {
		p.count = max(0, int32(observed.Config.Replicas))
	}
	p.out.Status = flexlvmv1.VolumeStatus{ID: observed.Config.ID, Replicas: p.count, SharedClaims: observed.sharedClaims()}
	p.out.RequeueAfter = whileIdle
	p.withdraw()
	switch {
	case !observed.Wanted:
		p.planRelease()
	case observed.Source.Shared != nil:
		p.planShared()
	case observed.Source.NFS != nil:
		p.planNFS()
	default:
		p.planReplicas()
	}
	p.deleteForgotten()
	return p.out
}

// planner is the state of one call of Plan.
type planner struct {
	*Observed
	out         Outcome
	labels      map[string]bool    // nodes that are to carry the label
	nodes       int                // number of nodes for replicas
	visits      int                // number of loaders that check the source
	count       int32              // number of wanted replicas
	assignments map[int]assignment // with replicas: All; otherwise nil
	peers       peering            // state of copying between replicas

	displaced int // number of replicas that this plan displaces
}

func (p *planner) do(actions ...Action) { p.out.Actions = append(p.out.Actions, actions...) }

func (p *planner) requeueAfter(after time.Duration) {
	p.out.RequeueAfter = min(p.out.RequeueAfter, max(after, time.Second))
}

// planNFS plans an NFS share, which kubelet mounts itself.
func (p *planner) planNFS() {
	p.planReaders()
	p.out.Status.VolumeSource = readersSource(p.Owner.Name, p.Config, p.Source.NFS.ReadOnly)
	if c := p.Readers.Claim; c != nil && !isDeleting(c) && c.Status.Phase == corev1.ClaimBound {
		p.out.Status.ReadyReplicas, p.out.Loaded = p.count, p.count
		p.out.Status.Message = flexlvmv1.MessageSuccess
	} else if p.out.Status.Message == "" {
		p.out.Status.Message = "waiting for its claim to be bound"
	}
}

func readersSource(owner string, v flexlvmv1.VolumeConfig, readOnly bool) *flexlvmv1.VolumeSource {
	return &flexlvmv1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
		ClaimName: replica.ReadersClaim(owner, v.ID), ReadOnly: readOnly,
	}}
}

// planReplicas plans replicas on nodes.
func (p *planner) planReplicas() {
	p.nodes = p.countNodes()
	p.countVisits()
	p.out.Refreshes = p.Source.Refresh != nil || p.refreshRequest() != ""
	p.deleteUploadJob() // it was for a release that is no longer wanted
	if p.Source.Writable() {
		p.out.Status.VolumeSource = &flexlvmv1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
			ClaimName: replicaName(p.Owner.Name, p.Config.ID, 0),
		}}
		if p.Source.StreamIgnored {
			p.out.Advice = append(p.out.Advice, "stream has no effect on a volume that consumers write to, which is ready when all of it is loaded; leave stream out")
		}
	} else {
		p.planReaders()
		p.out.Status.VolumeSource = readersSource(p.Owner.Name, p.Config, true)
	}
	p.out.Status.NodeAffinity = requiredAffinity(labelExists(p.label()))
	p.peers = p.peering()
	var indexes []int
	for _, index := range p.indexes() {
		r := p.Replicas[index]
		if r == nil {
			r = &Replica{}
		}
		status := p.planReplica(index, r)
		if status.State != "" {
			indexes = append(indexes, index)
			p.out.Status.Nodes = append(p.out.Status.Nodes, status)
		}
	}
	// Labels are removed first: the data that they promise is gone.
	var unlabel, label []Action
	for _, node := range p.Labelled {
		if !p.labels[node] {
			unlabel = append(unlabel, Action{Verb: Unlabel, Node: node, Key: p.label()})
		}
	}
	for _, node := range sorted(p.labels) {
		if !slices.Contains(p.Labelled, node) {
			label = append(label, Action{Verb: Label, Node: node, Key: p.label()})
		}
	}
	// Replicas that are already complete are usable, whatever happens to the others.
	p.out.Actions = slices.Concat(unlabel, label, p.out.Actions)
	p.summarizeReplicas()
	p.truncateStatus(indexes)
}

// planReplica plans one replica.
func (p *planner) planReplica(index int, r *Replica) flexlvmv1.ReplicaStatus {
	status := flexlvmv1.ReplicaStatus{Claim: replicaName(p.Owner.Name, p.Config.ID, index), Node: cmp.Or(r.Node, p.assignments[index].node)}
	switch {
	case isDeletedBeforeUpload(r):
		p.planMirroredDeletion(r, &status)
	case p.isWritable(r.Claim):
		p.planWritable(index, r, &status)
	case !p.isWanted(index):
		p.planLeaving(r, &status, p.surplus(r))
		if r.Claim == nil && r.Job == nil {
			status.State = ""
		}
	case p.loadFailed(index, r, &status):
	case r.Claim != nil && p.outdated(index, r) != "":
		if !p.staysForReaders(r, &status) {
			p.planLeaving(r, &status, p.outdated(index, r))
		}
	case p.staysAway(index, r, &status):
	case r.Claim == nil || isDeleting(r.Claim):
		p.planAbsent(index, r, &status)
	case p.isComplete(index, r):
		p.planComplete(index, r, &status)
	default:
		p.planLoading(index, r, &status)
	}
	if stays(status.State) {
		p.recordMatch(r, &status)
	}
	return status
}

func (p *planner) isComplete(index int, r *Replica) bool {
	return r.Claim != nil && p.isOfLoad(r, replica.AnnotationComplete, index)
}

// isOfLoad reports whether an annotation of a claim names the wanted load.
func (p *planner) isOfLoad(r *Replica, key string, index int) bool {
	return r.Claim.Annotations[key] == p.Source.Load(index)
}

// outdated returns why a wanted replica has to go; empty if it can stay.
func (p *planner) outdated(index int, r *Replica) string {
	switch {
	case isDeleting(r.Claim):
		return ""
	case r.Claim.Status.Phase == corev1.ClaimLost:
		return "its PersistentVolume is gone"
	case p.misplaced(r) != "":
		return p.misplaced(r)
	case r.Volume != nil && r.Volume.Annotations[replica.AnnotationEvictable] != "":
		return evicted
	case !p.isOfLoad(r, annotationLoad, index):
		return "it holds what the volume asked for earlier"
	}
	return p.mustLeaveNode(r)
}

// planLeaving plans the removal of a replica: its node's label first, then its Job, then the claim.
func (p *planner) planLeaving(r *Replica, status *flexlvmv1.ReplicaStatus, why string) {
	status.State, status.Message = flexlvmv1.ReplicaLeaving, why
	p.requeueAfter(whileLoading)
	if r.Node != "" && slices.Contains(p.Labelled, r.Node) {
		return // the label is removed in this plan, the rest once it is observed to be gone
	}
	p.delete(r, "ReplicaReleased", why)
}

func (p *planner) delete(r *Replica, reason, why string) {
	if r.Job != nil && !isDeleting(r.Job) {
		p.do(Action{Verb: Delete, Object: r.Job})
	}
	if r.Claim != nil && !isDeleting(r.Claim) {
		if isHeld(r.Claim) {
			p.do(Action{Verb: RemoveFinalizer, Object: r.Claim})
		}
		on := ""
		if r.Node != "" {
			on = " on " + r.Node
		}
		p.do(Action{Verb: Delete, Object: r.Claim, Reason: reason, Message: fmt.Sprintf("claim %s%s is released: %s", r.Claim.Name, on, why)})
	}
}

// planAbsent plans a replica without a claim, or whose claim is being deleted.
func (p *planner) planAbsent(index int, r *Replica, status *flexlvmv1.ReplicaStatus) {
	status.State = flexlvmv1.ReplicaWaiting
	p.requeueAfter(whileLoading)
	switch {
	case r.Job != nil:
		status.Message = "its remaining Job is being deleted"
		if !isDeleting(r.Job) {
			p.do(Action{Verb: Delete, Object: r.Job})
		}
	case r.Claim != nil:
		status.State, status.Message = flexlvmv1.ReplicaLeaving, "its claim is deleted as soon as no pod uses it"
	case p.assignments == nil && index >= p.nodes+maxAhead:
		status.Message = "no node is free for it, and other replicas already wait for nodes"
	default:
		status.Message = "its claim is being created"
		claim := replicaClaim(p.Owner, p.Config, p.Source, index, p.assignments[index].node)
		if p.remembered(index, claim.Name).State == flexlvmv1.ReplicaDisplaced {
			claim.Annotations[annotationWasDisplaced] = p.Now.UTC().Format(time.RFC3339)
		}
		p.do(Action{Verb: Create, Object: claim})
	}
}

// planLoading plans a replica that is not complete.
func (p *planner) planLoading(index int, r *Replica, status *flexlvmv1.ReplicaStatus) {
	task := p.task(index, r.Claim)
	p.requeueAfter(whileLoading)
	p.grow(r)
	succeeded, failed, _ := jobResult(r.Job)
	current := r.Job != nil && r.Job.Annotations[annotationClaimUID] == string(r.Claim.UID) &&
		r.Job.Annotations[annotationAttempt] == task.attempt && r.Job.Labels[labelRole] == roleLoad
	switch {
	case r.Job == nil && r.Busy:
		status.State, status.Message = flexlvmv1.ReplicaWaiting, "its last loader has not ended yet"
	case r.Job == nil:
		p.begin(index, r, status)
	case p.peersFailed(r):
		p.giveUpPeers(r, status)
	case !current && !isDeleting(r.Job):
		status.State, status.Message = flexlvmv1.ReplicaWaiting, "its loader is being restarted"
		p.do(Action{Verb: Delete, Object: r.Job})
	case !current:
		status.State, status.Message = flexlvmv1.ReplicaWaiting, "its loader is being restarted"
	case succeeded:
		status.State, status.Progress = flexlvmv1.ReplicaLoading, progressOf(reportOf(r.Pod))
		if p.labelNode(r, p.Source.Stream && p.wasLabelled(r)) {
			p.out.Status.ReadyReplicas++
		}
		p.do(p.recordComplete(index, r))
	case failed: // its loader never ran, or was interrupted: see loadFailedFor
		status.State, status.Message = flexlvmv1.ReplicaWaiting, couldNotRun(r.Pod)+"; it is retried"
		p.recreateLater(r.Job)
	default:
		p.running(index, r, status)
	}
}

// wasLabelled reports whether the replica's node carries the label. A streaming replica keeps it between the end of its
// load and the record of its completion.
func (p *planner) wasLabelled(r *Replica) bool { return slices.Contains(p.Labelled, r.Node) }

// running reports the progress of a loader. A loader that is too busy to answer is at least as far as before.
func (p *planner) running(index int, r *Replica, status *flexlvmv1.ReplicaStatus) {
	status.State, status.Progress = flexlvmv1.ReplicaWaiting, progressOf(r.Report)
	if status.Message = refusedOr(r.Refused, r.Pod); status.Message == "" {
		status.State = flexlvmv1.ReplicaLoading
		if r.Report != nil {
			status.Message = r.Report.Message
		} else if old := p.remembered(index, status.Claim); old.State == flexlvmv1.ReplicaLoading || old.State == flexlvmv1.ReplicaStreaming {
			status.Message, status.Progress = p.withoutMissing(r, old.Message), old.Progress
		}
	}
	if r.GroupMissing {
		status.Message = p.missing(r)
	}
	if p.Source.Stream && ready(r.Pod) {
		if p.labelNode(r, true) {
			status.State = flexlvmv1.ReplicaStreaming
			p.out.Status.ReadyReplicas++
		}
	}
	if p.mayDisplaceOthers(r) {
		p.out.DisplaceFor = append(p.out.DisplaceFor, index)
	}
	p.watchProgress(index, status)
}

// recordComplete permanently records that a replica is complete: its Job may be deleted.
func (p *planner) recordComplete(index int, r *Replica) Action {
	report := reportOf(r.Pod)
	if report == nil {
		report = &protocol.Status{}
	}
	report.State, report.Message = protocol.StateComplete, ""
	text, err := json.Marshal(report)
	if err != nil {
		panic(err) // numbers and strings only
	}
	took := p.Now.Sub(r.Claim.CreationTimestamp.Time).Round(time.Second)
	annotations := map[string]string{
		replica.AnnotationComplete: p.Source.Load(index), annotationLoaded: string(text), annotationTook: took.String(),
		annotationRefreshed: r.Job.Annotations[annotationRefreshed],
	}
	if !copies(r.Job) { // a copy has not asked the source
		annotations[annotationRefreshedAt] = p.Now.UTC().Format(time.RFC3339)
	}
	return Action{
		Verb: Annotate, Object: r.Claim, Annotations: annotations,
		Reason: "ReplicaComplete", Message: fmt.Sprintf("claim %s on %s is complete: %d files, %d bytes, %s after it was created", r.Claim.Name, r.Node, report.FilesDone, report.BytesDone, took),
	}
}

// planUsable plans a complete replica that is not displaced: it is labelled for pods and grows, unless its node asks
// for its room or lacks its volume group.
func (p *planner) planUsable(r *Replica, status *flexlvmv1.ReplicaStatus) {
	status.State, status.Progress = flexlvmv1.ReplicaComplete, progressOf(loadedReport(r.Claim))
	if r.Volume == nil || r.Node == "" {
		status.State, status.Message = flexlvmv1.ReplicaWaiting, "its PersistentVolume or its node is not known yet"
		p.requeueAfter(whileLoading)
		return
	}
	if r.GroupMissing {
		status.State, status.Progress, status.Message = flexlvmv1.ReplicaWaiting, nil, p.missing(r)
		p.requeueAfter(whileLoading)
		return
	}
	annotations := map[string]string{replica.AnnotationComplete: replica.Complete, replica.AnnotationEviction: string(p.Source.Eviction)}
	for key, value := range annotations {
		if r.Volume.Annotations[key] != value {
			p.do(Action{Verb: Annotate, Object: r.Volume, Annotations: annotations})
			break
		}
	}
	if p.labelNode(r, true) {
		p.out.Status.ReadyReplicas++
		p.out.Loaded++
	} else {
		status.State, status.Message = flexlvmv1.ReplicaLeaving, "its node needs the room"
		p.requeueAfter(whileLoading)
		p.unlabelled(r)
		return
	}
	p.recordUse(r)
	p.reportVersion(r, status)
	report := loadedReport(r.Claim)
	status.Checked, status.Revision, status.TimeToReady = report.Checks, report.Revision, timeToReady(r.Claim)
	for _, note := range report.Notes {
		if !slices.Contains(p.out.Advice, note) {
			p.out.Advice = append(p.out.Advice, note)
		}
	}
	if p.out.Status.Capacity == nil {
		if size, known := r.Claim.Status.Capacity[corev1.ResourceStorage]; known {
			p.out.Status.Capacity = &size
		}
	}
	p.grow(r)
}
