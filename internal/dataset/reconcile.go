package dataset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/kubeobject"
)

// reconciler reconciles one VolumeManager at a time. Its only state is when it listed pods.
type reconciler struct {
	Config
	cached    client.Reader // the caches of the watches
	live      client.Reader // the API server itself
	write     client.Client
	now       func() time.Time
	startedAt time.Time
	lists     podLists
	// podless records since when Jobs have no pods, by the UIDs of the Jobs.
	podless podLists
}

// afterAction is when a VolumeManager is reconciled again after an action, because the result of the action may
// cause no event.
const afterAction = time.Second

// whileRefused is when an action that the API server denied is retried.
const whileRefused = 10 * time.Second

// Reconcile brings a VolumeManager one step closer to its desired state.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	owner := &flexlvmv1.VolumeManager{}
	if err := r.cached.Get(ctx, request.NamespacedName, owner); err != nil {
		if apierrors.IsNotFound(err) {
			r.Metrics.Show(request.NamespacedName, nil)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	requeueAfter, err := r.step(ctx, owner)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) || errors.Is(err, errChanged) {
		// The object has changed or the cache is behind: the next pass resolves that.
		requeueAfter, err = afterAction, nil
	}
	return reconcile.Result{RequeueAfter: requeueAfter}, err
}

// step carries out the next step and returns when to reconcile again; 0 is never.
func (r *reconciler) step(ctx context.Context, owner *flexlvmv1.VolumeManager) (time.Duration, error) {
	if owner.DeletionTimestamp == nil && controllerutil.AddFinalizer(owner, Finalizer) {
		// Nothing is created before the finalizer is written.
		return afterAction, r.writeFinalizers(ctx, owner)
	}
	if !controllerutil.ContainsFinalizer(owner, Finalizer) {
		return 0, nil
	}
	s, err := r.list(ctx, owner)
	if err != nil {
		return 0, err
	}
	outcomes, acted, err := r.volumes(ctx, owner, s)
	if err != nil {
		return 0, err
	}
	released, requeueAfter := true, whileIdle
	for _, o := range outcomes {
		released, requeueAfter = released && o.Gone, min(requeueAfter, o.RequeueAfter)
	}
	if acted {
		requeueAfter = min(requeueAfter, afterAction)
	}
	if owner.DeletionTimestamp != nil && released {
		if err := r.confirmNoUnseenObjects(ctx, owner, s); err != nil {
			return 0, err
		}
		controllerutil.RemoveFinalizer(owner, Finalizer)
		r.Metrics.Show(client.ObjectKeyFromObject(owner), nil)
		return 0, r.writeFinalizers(ctx, owner)
	}
	if released {
		requeueAfter = 0 // nothing is left, and a watch shows anything that is created again
	}
	return requeueAfter, r.writeStatus(ctx, owner, outcomes, released)
}

// volumes plans each volume and carries out its next step. A volume with an invalid spec, or with a denied
// action, does not hold up the others.
func (r *reconciler) volumes(ctx context.Context, owner *flexlvmv1.VolumeManager, s *cacheView) (outcomes []Outcome, acted bool, err error) {
	configs, given := slices.Clone(owner.Spec.All()), owner.Spec.Given()
	for _, id := range formerIDs(owner, s) {
		configs = append(configs, flexlvmv1.VolumeConfig{ID: id})
	}
	for _, v := range configs {
		observed, err := r.observe(ctx, owner, v, s)
		if err != nil {
			return nil, false, err
		}
		s.observed = append(s.observed, observed)
		if len(observed.running()) > 0 {
			s.unasked++
		}
	}
	for i, v := range configs {
		inSpec := i < len(owner.Spec.All())
		o, err := r.volume(ctx, s.observed[i], s, inSpec)
		if err != nil {
			return nil, false, err
		}
		acted = acted || len(o.Actions) > 0
		if i < len(given) && given[i].ID != v.ID {
			o.Advice = append(o.Advice, fmt.Sprintf("its id %q is already used by an earlier volume of the spec, so its claim and its status entry are named %q; set its id to that", given[i].ID, v.ID))
		}
		o.Former = !inSpec
		outcomes = append(outcomes, o)
	}
	return outcomes, acted, nil
}

// volume carries out the next step for a volume.
func (r *reconciler) volume(ctx context.Context, observed *Observed, s *cacheView, inSpec bool) (Outcome, error) {
	owner := observed.Owner
	if len(observed.running()) > 0 {
		s.unasked-- // also if it is left before its loaders are asked
	}
	if inSpec && owner.DeletionTimestamp == nil && owner.Spec.State != flexlvmv1.StateCompleted {
		if err := r.readSource(ctx, observed, s); err != nil {
			return r.evictOnly(ctx, observed, err)
		}
		if err := r.addConsumers(ctx, observed, s); err != nil {
			return Outcome{}, err
		}
		r.askLoaders(ctx, observed, s)
	} else {
		if inSpec {
			if err := r.readUpload(observed); err != nil {
				return r.evictOnly(ctx, observed, err)
			}
		}
		observed.Dropped = !inSpec && owner.DeletionTimestamp == nil
		if err := r.release(ctx, observed, s); err != nil {
			return Outcome{}, err
		}
		// The pods were listed first: a mirror's report counts only if no pod used the volume before the
		// report.
		r.askLoaders(ctx, observed, s)
	}
	out, err := r.plan(ctx, observed, s)
	if err != nil {
		return Outcome{}, err
	}
	err = r.applyAll(ctx, observed, out.Actions)
	switch stranger := (*notOursError)(nil); {
	case err == nil || apierrors.IsConflict(err):
	case errors.As(err, &stranger), controlplane.Denied(err):
		// The API server will deny it again, so there is no hurry.
		out.Failed, out.Status.Message, out.Actions = true, err.Error(), nil
		out.RequeueAfter = max(out.RequeueAfter, whileRefused)
	default:
		return Outcome{}, err
	}
	return out, nil
}

// evictOnly leaves a volume whose spec cannot be parsed as it is, except for evictions that have begun.
func (r *reconciler) evictOnly(ctx context.Context, observed *Observed, why error) (Outcome, error) {
	out := invalidSpec(observed, why)
	out.Actions = Evict(observed)
	return out, r.applyAll(ctx, observed, out.Actions)
}

// plan plans a volume, and asks other replicas to make way for it.
func (r *reconciler) plan(ctx context.Context, observed *Observed, s *cacheView) (Outcome, error) {
	if err := r.addWithdrawn(ctx, observed); err != nil {
		return Outcome{}, err
	}
	out := Plan(observed)
	if len(out.DisplaceFor) > 0 && len(out.Actions) == 0 {
		return out, r.displace(ctx, observed, out.DisplaceFor, s)
	}
	return out, nil
}

// readUpload sets what has to be uploaded before a volume is released. A spec that cannot be parsed may ask for
// an upload, so it is an error. Deleting the VolumeManager asks for no upload, except of a mirrored volume.
func (r *reconciler) readUpload(observed *Observed) (err error) {
	deleted := observed.Owner.DeletionTimestamp != nil
	if observed.Source, err = ParseSource(observed.Config); err != nil && (!deleted || observed.anyHeld()) {
		return err
	}
	observed.Upload = observed.Source.OutputURL != "" && !deleted || observed.Source.Mirror
	return nil
}

func (r *reconciler) writeFinalizers(ctx context.Context, owner *flexlvmv1.VolumeManager) error {
	if err := r.write.Patch(ctx, owner, client.RawPatch(types.MergePatchType, kubeobject.FinalizersPatch(owner, owner.Finalizers))); err != nil {
		return fmt.Errorf("write the finalizers of VolumeManager %s/%s: %w", owner.Namespace, owner.Name, err)
	}
	return nil
}

// writeStatus writes the status if it has changed, and sends the events of the change.
func (r *reconciler) writeStatus(ctx context.Context, owner *flexlvmv1.VolumeManager, outcomes []Outcome, released bool) error {
	next := owner.DeepCopy()
	next.Status = statusOf(owner, outcomes, released)
	shown := next.DeepCopy().Status.Volumes // Update overwrites next with the API server's answer
	if released {
		shown = nil
	}
	r.Metrics.Show(client.ObjectKeyFromObject(owner), shown, failedIDs(outcomes)...)
	if equality.Semantic.DeepEqual(next.Status, owner.Status) {
		return nil
	}
	if err := r.write.Status().Update(ctx, next); err != nil {
		return fmt.Errorf("write the status of VolumeManager %s/%s: %w", owner.Namespace, owner.Name, err)
	}
	before := map[string]flexlvmv1.VolumeStatus{}
	for _, v := range owner.Status.Volumes {
		before[v.ID] = v
	}
	for _, v := range next.Status.Volumes {
		for _, e := range eventsOf(before[v.ID], v) {
			r.event(owner, e.kind, e.reason, e.message)
		}
	}
	if next.Status.State != owner.Status.State {
		kind := corev1.EventTypeNormal
		if next.Status.State == flexlvmv1.StateFailed {
			kind = corev1.EventTypeWarning
		}
		r.event(owner, kind, string(next.Status.State), next.Status.Message+why(next.Status))
	}
	return nil
}

// failedIDs returns the ids of the volumes that need a person to act.
func failedIDs(volumes []Outcome) (ids []string) {
	for _, v := range volumes {
		if v.Failed {
			ids = append(ids, v.Status.ID)
		}
	}
	return ids
}

func why(status flexlvmv1.VolumeManagerStatus) string {
	if status.Summary.Message == "" || status.State == flexlvmv1.StateRunning {
		return ""
	}
	return "; " + status.Summary.Message
}
