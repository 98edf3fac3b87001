package migration

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
)

// ErrInUse means that a pod uses the claim.
var ErrInUse = errors.New("in use")

// pause is the polling interval while Kubernetes has to act.
const pause = 100 * time.Millisecond

// A Mover moves PersistentVolumes with the rights of its client: it reads claims, pods and
// CSINodes, and creates, patches and deletes PersistentVolumes.
type Mover struct {
	Client  client.Client
	Timeout time.Duration      // for one claim
	Say     func(doing string) // called before each write; may be nil
}

// A state is what exists of a claim's volume.
type state struct {
	claim       *corev1.PersistentVolumeClaim
	volume      *corev1.PersistentVolume // nil: does not exist
	placeholder *corev1.PersistentVolume // nil: does not exist
	record      record                   // of the placeholder
}

// A step is the next action.
type step struct {
	doing string // what is done or, if do is nil, waited for
	do    func(context.Context) error
}

// Move moves the PersistentVolume of a claim to a door, and continues an earlier call that did not finish. It
// may be killed at any time.
func (m *Mover) Move(ctx context.Context, claim types.NamespacedName, door pv.Door) error {
	waitsFor := "read the claim"
	err := wait.PollUntilContextTimeout(ctx, pause, m.Timeout, true, func(ctx context.Context) (bool, error) {
		for {
			next, err := m.next(ctx, claim, door)
			if err != nil || next == nil {
				return true, err
			}
			waitsFor = next.doing
			if next.do == nil {
				return false, nil
			}
			if m.Say != nil {
				m.Say(next.doing)
			}
			switch err := next.do(ctx); {
			case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err):
				return false, nil // the objects have changed: read them again
			case err != nil:
				return true, fmt.Errorf("%s: %w; run the same command again to continue", next.doing, err)
			}
		}
	})
	if wait.Interrupted(err) && ctx.Err() == nil {
		return fmt.Errorf("claim %s: timed out after %s; its next step is: %s; run the same command again to continue", claim, m.Timeout, waitsFor)
	}
	return err
}

// Check returns what Move would do first, without doing it; empty if there is nothing to do.
func (m *Mover) Check(ctx context.Context, claim types.NamespacedName, door pv.Door) (string, error) {
	next, err := m.next(ctx, claim, door)
	if err != nil || next == nil {
		return "", err
	}
	return next.doing, nil
}

// read reads the current state.
func (m *Mover) read(ctx context.Context, key types.NamespacedName) (state, error) {
	s := state{claim: &corev1.PersistentVolumeClaim{}}
	if err := m.Client.Get(ctx, key, s.claim); err != nil {
		return s, fmt.Errorf("read claim %s: %w", key, err)
	}
	name := s.claim.Spec.VolumeName
	if name == "" {
		return s, fmt.Errorf("claim %s has no PersistentVolume yet; its StorageClass determines the driver (FlexVolume or CSI)", key)
	}
	var err error
	if s.volume, err = m.volume(ctx, name); err != nil {
		return s, err
	}
	if s.placeholder, err = m.volume(ctx, placeholderName(name)); err != nil {
		return s, err
	}
	if s.placeholder != nil {
		s.record, err = readRecord(s.placeholder, s.claim)
	}
	return s, err
}

func (m *Mover) volume(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	object := &corev1.PersistentVolume{}
	switch err := m.Client.Get(ctx, client.ObjectKey{Name: name}, object); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read PersistentVolume %s: %w", name, err)
	}
	return object, nil
}

// next returns the next step for a claim; nil if there is nothing left to do. A move that has begun is finished
// first, even if it was for the other door.
func (m *Mover) next(ctx context.Context, key types.NamespacedName, door pv.Door) (*step, error) {
	s, err := m.read(ctx, key)
	if err != nil {
		return nil, err
	}
	switch {
	case s.placeholder != nil && s.volume == nil:
		return m.recreate(s)
	case s.volume == nil:
		return nil, fmt.Errorf("claim %s has lost its PersistentVolume %s, and there is no placeholder %s from a move; if the volume is still on its node, restore it as docs/undelete.md describes", key, s.claim.Spec.VolumeName, placeholderName(s.claim.Spec.VolumeName))
	case !persistentvolume.IsOurs(s.volume):
		return nil, fmt.Errorf("PersistentVolume %s of claim %s does not belong to flexlvm", s.volume.Name, key)
	case s.placeholder != nil && s.volume.UID != s.placeholder.Spec.ClaimRef.UID:
		return m.finish(s), nil
	case s.placeholder != nil:
		return m.takeAway(ctx, s)
	case persistentvolume.DoorOf(s.volume) == door:
		return nil, nil
	}
	if err := m.check(ctx, s, door); err != nil {
		return nil, err
	}
	return m.begin(s, door)
}

// begin returns the step that creates the placeholder.
func (m *Mover) begin(s state, door pv.Door) (*step, error) {
	placeholder, err := newPlaceholder(s.volume, door, recordOf(s.volume, s.claim, s.volume.Spec.PersistentVolumeReclaimPolicy))
	if err != nil {
		return nil, err
	}
	return &step{"create the placeholder PersistentVolume " + placeholder.Name, func(ctx context.Context) error {
		return m.Client.Create(ctx, placeholder)
	}}, nil
}

// takeAway returns the next step until the old PersistentVolume is gone. Each step changes the PersistentVolume
// only if it is still as recorded in the placeholder.
func (m *Mover) takeAway(ctx context.Context, s state) (*step, error) {
	object := s.volume
	if s.placeholder.DeletionTimestamp != nil {
		return nil, fmt.Errorf("the placeholder PersistentVolume %s is being deleted, but not by this command; once it is gone, set the reclaim policy of PersistentVolume %s as needed (it was %s), and run the same command again to continue", s.placeholder.Name, object.Name, s.record.Policy)
	}
	if err := onlyOurs(object); err != nil {
		return nil, err
	}
	if err := m.unused(ctx, s.claim); err != nil {
		return nil, err
	}
	now, err := recordOf(object, s.claim, policyOf(object, s.placeholder, s.record)).text()
	if err != nil {
		return nil, err
	}
	preconditions := client.Preconditions{UID: &object.UID, ResourceVersion: &object.ResourceVersion}
	switch {
	case s.placeholder.Annotations[pv.AnnotationReplaces] != now:
		return &step{"record changes of the PersistentVolume in the placeholder", func(ctx context.Context) error {
			return m.patch(ctx, s.placeholder, func(p *corev1.PersistentVolume) { p.Annotations[pv.AnnotationReplaces] = now })
		}}, nil
	case s.placeholder.Status.Phase != corev1.VolumeReleased:
		return &step{doing: "wait until the placeholder's phase is Released"}, nil
	case object.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain:
		return &step{"set the reclaim policy of PersistentVolume " + object.Name + " to Retain", func(ctx context.Context) error {
			return m.patch(ctx, object, func(p *corev1.PersistentVolume) {
				metav1.SetMetaDataAnnotation(&p.ObjectMeta, pv.AnnotationRetainedFor, string(s.placeholder.UID))
				p.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
			})
		}}, nil
	case object.DeletionTimestamp == nil:
		return &step{"delete PersistentVolume " + object.Name, func(ctx context.Context) error {
			return m.Client.Delete(ctx, object, preconditions)
		}}, nil
	}
	return &step{"remove the finalizers of PersistentVolume " + object.Name, func(ctx context.Context) error {
		return m.patch(ctx, object, func(p *corev1.PersistentVolume) { p.Finalizers = nil })
	}}, nil
}

// recreate returns the step that creates the new PersistentVolume.
func (m *Mover) recreate(s state) (*step, error) {
	if s.claim.DeletionTimestamp != nil {
		return nil, fmt.Errorf("claim %s/%s is being deleted; the placeholder PersistentVolume %s keeps its volume", s.claim.Namespace, s.claim.Name, s.placeholder.Name)
	}
	object, err := replacement(s.placeholder, s.record, s.claim)
	if err != nil {
		return nil, err
	}
	return &step{fmt.Sprintf("recreate PersistentVolume %s for driver %s", object.Name, persistentvolume.DoorOf(object)), func(ctx context.Context) error {
		return m.Client.Create(ctx, object)
	}}, nil
}

// finish returns the next step after the new PersistentVolume is created: its reclaim policy is set once its
// claim is bound to it, and the placeholder is deleted.
func (m *Mover) finish(s state) *step {
	object := s.volume
	switch {
	case object.Status.Phase != corev1.VolumeBound || s.claim.Status.Phase != corev1.ClaimBound:
		return &step{doing: "wait until claim " + s.claim.Name + " is bound again"}
	case object.Spec.PersistentVolumeReclaimPolicy != s.record.Policy:
		return &step{fmt.Sprintf("set the reclaim policy of PersistentVolume %s to %s", object.Name, s.record.Policy), func(ctx context.Context) error {
			return m.patch(ctx, object, func(p *corev1.PersistentVolume) { p.Spec.PersistentVolumeReclaimPolicy = s.record.Policy })
		}}
	case s.placeholder.DeletionTimestamp != nil:
		return &step{doing: "wait until the placeholder is gone"}
	case s.placeholder.Labels[pv.LabelNode] != "":
		// Otherwise, when it is deleted, the node daemon would report that another PersistentVolume names its
		// volume.
		return &step{"remove the node label of the placeholder", func(ctx context.Context) error {
			return m.patch(ctx, s.placeholder, func(p *corev1.PersistentVolume) { delete(p.Labels, pv.LabelNode) })
		}}
	}
	return &step{"delete the placeholder PersistentVolume " + s.placeholder.Name, func(ctx context.Context) error {
		return m.Client.Delete(ctx, s.placeholder, client.Preconditions{UID: &s.placeholder.UID})
	}}
}

// patch changes a PersistentVolume if nobody has changed it since it was read.
func (m *Mover) patch(ctx context.Context, object *corev1.PersistentVolume, change func(*corev1.PersistentVolume)) error {
	changed := object.DeepCopy()
	change(changed)
	return m.Client.Patch(ctx, changed, client.MergeFromWithOptions(object, client.MergeFromWithOptimisticLock{}))
}
