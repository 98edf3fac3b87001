package growth

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/kubeobject"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	// gather is how long changes are batched: kube-controller-manager writes a claim several times
	// while it tries to expand it.
	gather = 200 * time.Millisecond
	// workers is how many nodes are processed at the same time.
	workers = 4
	// timeout limits the work on one claim.
	timeout = 30 * time.Second
	// sameWords is how long the message of a condition stays although its numbers change.
	sameWords = time.Minute
)

// Config configures a controller.
type Config struct {
	Client  kubernetes.Interface
	Events  record.EventRecorder
	Ledger  *ledger.Ledger
	Claims  corelisters.PersistentVolumeClaimLister
	Volumes corelisters.PersistentVolumeLister
	// Claim returns a claim from the API server; Claims may be stale, and omits fields.
	Claim func(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error)
	Now   func() time.Time
	// Metrics counts the claims of the newest controller of this process.
	Metrics *Metrics
}

// A Controller grows volumes as claims request. Its queue holds node labels.
type Controller struct {
	Config
	index *index
	queue workqueue.TypedRateLimitingInterface[string]
}

// New returns a controller that is notified of claims, PersistentVolumes and room.
func New(config Config) *Controller {
	c := &Controller{
		Config: config, index: newIndex(),
		queue: workqueue.NewTypedRateLimitingQueue(controlplane.RetryLimiter()),
	}
	config.Metrics.index.Store(c.index)
	return c
}

// Room queues a node where there may be more room.
func (c *Controller) Room(label string) {
	if c.index.any(label) {
		c.queue.AddAfter(label, gather)
	}
}

// SeeClaim handles a claim that was added or updated.
func (c *Controller) SeeClaim(claim *corev1.PersistentVolumeClaim) {
	if claim.Spec.VolumeName == "" {
		return
	}
	if object, err := c.Volumes.Get(claim.Spec.VolumeName); err == nil {
		c.observe(claim, object)
	}
}

// ClaimGone forgets a claim that was deleted.
func (c *Controller) ClaimGone(claim *corev1.PersistentVolumeClaim) { c.index.remove(keyOf(claim)) }

// SeeVolume handles a PersistentVolume that was added or updated.
func (c *Controller) SeeVolume(object *corev1.PersistentVolume) {
	ref := object.Spec.ClaimRef
	if ref == nil || !persistentvolume.IsOurs(object) {
		return
	}
	if claim, err := c.Claims.PersistentVolumeClaims(ref.Namespace).Get(ref.Name); err == nil {
		c.observe(claim, object)
	}
}

func (c *Controller) observe(claim *corev1.PersistentVolumeClaim, object *corev1.PersistentVolume) {
	if !wanting(claim, object) {
		c.index.remove(keyOf(claim))
		return
	}
	label := object.Labels[pv.LabelNode]
	c.index.add(label, requestOf(claim, c.Now()))
	c.queue.AddAfter(label, gather)
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	defer c.queue.ShutDown()
	for range workers {
		all.Go(func() {
			for c.next(ctx) {
			}
		})
	}
	<-ctx.Done()
}

func (c *Controller) next(ctx context.Context) bool {
	label, ended := c.queue.Get()
	if ended {
		return false
	}
	defer c.queue.Done(label)
	if ctx.Err() != nil {
		return true
	}
	again, err := c.serve(ctx, label)
	if err != nil {
		if ctx.Err() == nil && c.queue.NumRequeues(label) == 0 {
			klog.FromContext(ctx).Error(err, "The growth of a claim could not be continued; it is retried", "node", label)
		}
		c.queue.AddRateLimited(label)
		return true
	}
	c.queue.Forget(label)
	if !again.IsZero() {
		c.queue.AddAfter(label, max(again.Sub(c.Now()), 0)+gather)
	}
	return true
}

// serve processes all claims of a node that ask to grow, in the order of their requests. A claim that
// waits does not block later claims from room that would be too little for it.
func (c *Controller) serve(ctx context.Context, label string) (again time.Time, err error) {
	var failed []error
	for _, r := range c.index.of(label) {
		next, err := c.serveClaim(ctx, r)
		switch {
		case apierrors.IsConflict(err):
			next = c.Now() // somebody else has written the object
		case err != nil:
			failed = append(failed, fmt.Errorf("claim %s/%s: %w", r.key.namespace, r.key.name, err))
		}
		if !next.IsZero() && (again.IsZero() || next.Before(again)) {
			again = next
		}
	}
	return again, errors.Join(failed...)
}

// serveClaim processes one claim. The caches decide whether there is anything to do; what to do is decided
// from objects read from the API server.
func (c *Controller) serveClaim(ctx context.Context, r *resizeRequest) (again time.Time, err error) {
	claim, err := c.Claims.PersistentVolumeClaims(r.key.namespace).Get(r.key.name)
	if err != nil {
		return time.Time{}, nil // the claim is gone, and ClaimGone follows
	}
	object, err := c.Volumes.Get(claim.Spec.VolumeName)
	if err != nil {
		return time.Time{}, nil
	}
	seen := decide(c.input(r, claim, object), func(to volume.Bytes) ledger.Answer { return c.Ledger.MayGrow(object, to) })
	if len(seen.steps) == 0 && !c.isNews(r, claim, seen.answer) {
		return seen.again, nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	claim, err = c.Claim(ctx, r.key.namespace, r.key.name)
	if err == nil {
		object, err = c.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	}
	switch {
	case apierrors.IsNotFound(err):
		return time.Time{}, nil
	case err != nil:
		return time.Time{}, err
	}
	c.Ledger.Written(object)
	todo := decide(c.input(r, claim, object), func(to volume.Bytes) ledger.Answer { return c.Ledger.Grow(object, to) })
	if todo.takenBack && mayBeGrowing(claim) {
		c.Ledger.Keep(object)
	}
	object, err = c.carryOut(ctx, claim, object, todo.steps)
	// Report a granted growth even if the claim's last step has failed on a conflict: the next pass
	// finds the growth granted, and reports nothing.
	if err == nil || todo.granted(claim, object) {
		c.remember(r, claim, todo)
	}
	if err != nil {
		return time.Time{}, err
	}
	if todo.takenBack {
		return c.Now(), nil
	}
	return todo.again, nil
}

// input gathers the data for the decision on a claim.
func (c *Controller) input(r *resizeRequest, claim *corev1.PersistentVolumeClaim, object *corev1.PersistentVolume) input {
	out := input{claim: claim, object: object, now: c.Now(), since: r.since}
	if c.Ledger.Holds(object) {
		r.lacks = time.Time{}
	} else if r.lacks.IsZero() {
		r.lacks = out.now
	}
	out.lacks = r.lacks
	ask := asked(claim)
	if ask.Value() >= r.failed {
		out.notBefore = r.until
	}
	out.reportedRecently = r.reported.to == ask.Value() && out.now.Sub(r.reported.at) < sameWords
	return out
}

// isNews reports whether this answer has not been reported to the claim yet.
func (c *Controller) isNews(r *resizeRequest, claim *corev1.PersistentVolumeClaim, answer *ledger.Answer) bool {
	ask := asked(claim)
	return answer != nil && (r.reported.outcome != answer.Outcome || r.reported.to != ask.Value())
}

// remember records what was done, and reports it in an event if it is new.
func (c *Controller) remember(r *resizeRequest, claim *corev1.PersistentVolumeClaim, done plan) {
	if e := condition(claim, corev1.PersistentVolumeClaimNodeResizeError); done.takenBack && e != nil {
		ask := asked(claim)
		if kubeobject.IsBlock(claim.Spec.VolumeMode) && ranOutOfTime(e) {
			r.pause = 0
		}
		r.fail(ask.Value(), c.Now())
	}
	if done.answer == nil {
		return
	}
	if c.isNews(r, claim, done.answer) || done.takenBack {
		kind := corev1.EventTypeWarning
		if done.answer.Outcome.Promised() {
			kind = corev1.EventTypeNormal
		}
		c.Events.Event(claim, kind, eventReasons[done.answer.Outcome], resizeCondition(claim, *done.answer, r.since).Message)
	}
	ask := asked(claim)
	if c.isNews(r, claim, done.answer) || c.Now().Sub(r.reported.at) >= sameWords {
		c.index.report(r, reportedAnswer{done.answer.Outcome, ask.Value(), c.Now()})
	}
}

// eventReasons are the reasons of the events on claims that ask to grow.
var eventReasons = map[ledger.Outcome]string{
	ledger.Refused: "GrowthRefused", ledger.Waiting: "GrowthWaiting",
	ledger.MakingRoom: "GrowthMakingRoom", ledger.Granted: "GrowthGranted",
}
