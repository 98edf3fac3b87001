package dataset

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/replica"
)

// evade are changes of a guest's VolumeManager after which its own reconciliation does not read the offer.
var evade = map[string]func(*flexlvmv1.VolumeConfig){
	"an option that is not known": func(v *flexlvmv1.VolumeConfig) { v.Options["region"] = "x" },
	"no name":                     func(v *flexlvmv1.VolumeConfig) { delete(v.Options, "name") },
}

// If a guest's own VolumeManager cannot notice that the offer is withdrawn, the owner deletes the guest's claim
// and PersistentVolume.
func TestOwnerWithdrawsFromThoseWhoDoNotLook(t *testing.T) {
	for name, change := range evade {
		t.Run(name, func(t *testing.T) {
			r := newOffer(t)
			r.offers("team")
			guest := r.looks(r.guest("team"))
			change(&guest.Spec.Volumes[0])
			require.NoError(t, r.client.Update(t.Context(), guest))
			require.NoError(t, r.look())
			guest = r.looks(guest)
			claim, _ := r.readersOf(guest)
			require.NotNil(t, claim, "it is offered still")
			claim.Finalizers = append(claim.Finalizers, "kubernetes.io/pvc-protection")
			require.NoError(t, r.client.Update(t.Context(), claim))

			r.offers("another")
			for range 3 {
				require.NoError(t, r.look())
			}
			claim, volume := r.readersOf(guest)
			require.NotNil(t, claim.DeletionTimestamp)
			require.Nil(t, volume.DeletionTimestamp, "running pods keep it")
			vm := r.get()
			vm.Spec.State = flexlvmv1.StateCompleted
			require.NoError(t, r.client.Update(t.Context(), vm))
			for range 6 {
				require.NoError(t, r.look())
			}
			require.NotEqual(t, flexlvmv1.StateCompleted, r.get().Status.State)

			claim.Finalizers = nil
			require.NoError(t, r.client.Update(t.Context(), claim))
			for range 8 {
				require.NoError(t, r.look())
			}
			claim, volume = r.readersOf(guest)
			require.Nil(t, claim)
			require.Nil(t, volume)
			require.Equal(t, flexlvmv1.StateCompleted, r.get().Status.State, "nobody keeps the owner from releasing it")
		})
	}
}

// If the API server cannot return the claim, nothing is withdrawn.
func TestOwnerWithdrawsNothingInDoubt(t *testing.T) {
	r := newOffer(t)
	r.offers("team")
	guest := r.looks(r.guest("team"))
	r.offers("another")
	r.live = failingClaims{r.client}
	require.ErrorContains(t, r.look(), "broken")
	claim, volume := r.readersOf(guest)
	require.Nil(t, claim.DeletionTimestamp)
	require.NotNil(t, volume)
}

// If the API server denies the deletion of a guest's claim, the owner's other actions are carried out
// nevertheless.
func TestWithdrawalThatIsDenied(t *testing.T) {
	r := newOffer(t)
	r.offers("team")
	r.looks(r.guest("team"))
	r.fail = func(verb string, o any) error {
		if c, is := o.(*corev1.PersistentVolumeClaim); is && verb == "delete" && c.Namespace == "team" {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumeclaims"}, c.Name, errors.New("it is the guest's"))
		}
		return nil
	}
	r.offers("another")
	vm := r.get()
	vm.Spec.Volumes[0].Replicas = 2
	require.NoError(t, r.client.Update(t.Context(), vm))
	for range 8 {
		require.NoError(t, r.look())
	}
	require.NoError(t, r.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "v-a-1"}, &corev1.PersistentVolumeClaim{}), "the second replica")
	require.Contains(t, r.get().Status.Volumes[0].Message, "PersistentVolumeClaim team/")
}

// failingClaims fails to get claims.
type failingClaims struct{ client.Reader }

func (f failingClaims) Get(ctx context.Context, key client.ObjectKey, object client.Object, o ...client.GetOption) error {
	if _, is := object.(*corev1.PersistentVolumeClaim); is {
		return errors.New("broken")
	}
	return f.Reader.Get(ctx, key, object, o...)
}

// A volume that switches from a shared dataset to a source of its own gets a PersistentVolume for its own
// dataset.
func TestSharedBecomesAVolumeOfItsOwn(t *testing.T) {
	r := newOffer(t)
	r.offers("team")
	guest := r.looks(r.guest("team"))
	own := volumeOf(flexlvmv1.SourceS3, 1, s3Options(nil))
	own.ID = "b"
	guest.Spec.Volumes[0] = own
	require.NoError(t, r.client.Update(t.Context(), guest))
	guest = r.looks(guest)
	_, volume := r.readersOf(guest)
	require.NotNil(t, volume)
	require.Empty(t, volume.Labels[replica.LabelShared])
}

// A VolumeManager may read a volume that another one offers to their common namespace.
func TestSharedWithOnesOwnNamespace(t *testing.T) {
	r := newOffer(t)
	r.offers("ns")
	guest := r.looks(r.guest("ns"))
	require.Equal(t, flexlvmv1.StateRunning, guest.Status.State, "%+v", guest.Status)
	_, volume := r.readersOf(guest)
	require.Equal(t, hash(r.get(), "a"), volume.Labels[replica.LabelShared])
	require.NotContains(t, volume.Spec.CSI.VolumeAttributes, "ownerNamespace")
	r.done = nil
	r.looks(guest)
	require.Empty(t, r.done, "it stays as it is")
}
