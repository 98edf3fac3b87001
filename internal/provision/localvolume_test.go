package provision_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/provision"
	"github.com/flexlvm/flexlvm/internal/pv"
)

// A localBed is the API with one LocalVolume, and a process that can be killed after a write.
type localBed struct {
	t       *testing.T
	cast    *cast
	client  *fake.Clientset
	object  *flexlvmv1.LocalVolume // nil: gone
	reports cache.Store
	die     int // after this number of writes; 0: never
	writes  int
}

var errDied = errors.New("the process was killed")

const localPV = "local-uid-1"

func newLocalBed(t *testing.T, change ...func(*flexlvmv1.LocalVolume)) *localBed {
	o := &flexlvmv1.LocalVolume{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "data", UID: "uid-1"},
		Spec: flexlvmv1.LocalVolumeSpec{
			NodeName: "node-1", StorageClassName: "flexlvm", Size: "1Gi", VolumeMode: corev1.PersistentVolumeFilesystem,
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		},
	}
	for _, c := range change {
		c(o)
	}
	b := &localBed{t: t, cast: newCast(t), client: fake.NewClientset(), object: o, reports: cache.NewStore(cache.MetaNamespaceKeyFunc)}
	b.report(flexlvmv1.DeclaredWaiting, "")
	write := func(a kubetesting.Action) (bool, runtime.Object, error) {
		if b.writes++; b.writes != b.die {
			return false, nil, nil
		}
		if create, is := a.(kubetesting.CreateAction); is {
			require.NoError(t, b.client.Tracker().Add(create.GetObject()))
		}
		return true, nil, errDied
	}
	b.client.PrependReactor("create", "persistentvolumes", write)
	return b
}

func (b *localBed) report(state flexlvmv1.DeclaredState, message string) {
	r := ledgertest.Report("node-1", 10*ledgertest.OneGiB)
	r.Status.DeclaredVolumes = []flexlvmv1.DeclaredVolume{{Name: localPV, State: state, Message: message}}
	require.NoError(b.t, b.reports.Add(r))
}

// wrote counts a write, and returns errDied if the process is to be killed after it.
func (b *localBed) wrote() error {
	if b.writes++; b.writes == b.die {
		return errDied
	}
	return nil
}

func (b *localBed) LocalVolume(_ context.Context, namespace, name string) (*flexlvmv1.LocalVolume, error) {
	if b.object == nil || b.object.Namespace != namespace || b.object.Name != name {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "localvolumes"}, name)
	}
	return b.object.DeepCopy(), nil
}

func (b *localBed) SetLocalVolumeFinalizers(_ context.Context, o *flexlvmv1.LocalVolume, finalizers []string) (*flexlvmv1.LocalVolume, error) {
	require.Equal(b.t, b.object.UID, o.UID)
	b.object.Finalizers = finalizers
	now := b.object.DeepCopy()
	if len(finalizers) == 0 && now.DeletionTimestamp != nil {
		b.object = nil
	}
	return now, b.wrote()
}

func (b *localBed) UpdateLocalVolumeStatus(_ context.Context, o *flexlvmv1.LocalVolume) error {
	b.object.Status = *o.Status.DeepCopy()
	return b.wrote()
}

// sync reconciles once in a new process, and returns the LocalVolume's condition.
func (b *localBed) sync() (reason, message string) {
	b.t.Helper()
	if b.object == nil {
		return "", ""
	}
	provision.NewLocalVolumes(b.cast.provisioner(b.t), b.client, b, b.reports).Sync(b.t.Context(), b.object.DeepCopy())
	if b.object == nil {
		return "", ""
	}
	c := meta.FindStatusCondition(b.object.Status.Conditions, flexlvmv1.ConditionReady)
	if c == nil {
		return "", ""
	}
	require.Equal(b.t, c.Status == metav1.ConditionTrue, c.Reason == flexlvmv1.LocalVolumeMade || c.Reason == flexlvmv1.LocalVolumeBound)
	return c.Reason, c.Message
}

func (b *localBed) volume() *corev1.PersistentVolume {
	b.t.Helper()
	object, err := b.client.CoreV1().PersistentVolumes().Get(b.t.Context(), localPV, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(b.t, err)
	return object
}

func (b *localBed) become(phase corev1.PersistentVolumePhase, claim string) {
	object := b.volume()
	object.Status.Phase = phase
	object.Spec.ClaimRef.UID = "claim-uid"
	if claim == "" {
		object.Spec.ClaimRef.UID = ""
	}
	require.NoError(b.t, b.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), object, ""))
}

func TestLocalVolumeKilledAfterEveryWrite(t *testing.T) {
	for die := 1; ; die++ {
		b := newLocalBed(t, func(o *flexlvmv1.LocalVolume) {
			o.Spec.Parameters = map[string]string{"fsType": "ext4", "inodes": "1000"}
		})
		b.die = die
		b.sync()
		if b.writes < die {
			require.Equal(t, 4, die, "finalizer, PersistentVolume, status")
			return
		}
		b.die = 0
		b.sync()
		reason, message := b.sync()
		require.Equal(t, flexlvmv1.LocalVolumeMaking, reason, message)
		object := b.volume()
		require.NotNil(t, object)
		require.Equal(t, []string{pv.FinalizerLocalVolume}, b.object.Finalizers)
		require.Equal(t, localPV, b.object.Status.PersistentVolumeName)
		require.Equal(t, "flexlvm", object.Spec.StorageClassName)
		require.Equal(t, &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: "team", Name: "data"}, object.Spec.ClaimRef)
		require.Equal(t, pv.Provisioner, object.Annotations[pv.AnnotationProvisionedBy])
		v, err := persistentvolume.Parse(object)
		require.NoError(t, err)
		require.True(t, v.Declared)
		require.Equal(t, "ext4", v.FSType.String())
		require.EqualValues(t, 1000, v.Inodes)
		require.Equal(t, "team", v.ClaimNamespace)

		b.report(flexlvmv1.DeclaredWaiting, "LVM hangs")
		_, message = b.sync()
		require.Equal(t, "node node-1 has not created it yet: LVM hangs", message, "its room may be gone")
		b.report(flexlvmv1.DeclaredMade, "")
		reason, message = b.sync()
		require.Equal(t, flexlvmv1.LocalVolumeMade, reason)
		require.Contains(t, message, "kept for claim team/data")
	}
}

func TestLocalVolumeThatIsRefused(t *testing.T) {
	for says, change := range map[string]func(*localBed){
		`there is no StorageClass "fast"`:               func(b *localBed) { b.object.Spec.StorageClassName = "fast" },
		`the provisioner of StorageClass "flexlvm" is`:  func(b *localBed) { b.cast.classes[0].Provisioner = "example.org/other" },
		`the cluster has no node "node-9"`:              func(b *localBed) { b.object.Spec.NodeName = "node-9" },
		`node "node-2" has no label kubernetes.io/host`: func(b *localBed) { b.object.Spec.NodeName = "node-2" },
		`spec.size "much": is no quantity`:              func(b *localBed) { b.object.Spec.Size = "much" },
		`access mode ReadWriteMany is not supported`: func(b *localBed) {
			b.object.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		},
		`has layout "directory", whose volumes are made by their first mount`: func(b *localBed) {
			b.cast.classes[0].Parameters = directoryParameters(nil)
		},
		`"wipe" cannot be set by a LocalVolume`: func(b *localBed) { b.object.Spec.Parameters = map[string]string{"wipe": "none"} },
		`fsType "btrfs"`:                        func(b *localBed) { b.object.Spec.Parameters = map[string]string{"fsType": "btrfs"} },
		`allowedTopologies of StorageClass "flexlvm"`: func(b *localBed) {
			b.cast.classes[0].AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: corev1.LabelHostname, Values: []string{"elsewhere"}}}}}
		},
	} {
		b := newLocalBed(t)
		b.cast.classes = []*storagev1.StorageClass{class(nil)}
		change(b)
		reason, message := b.sync()
		require.Equal(t, flexlvmv1.LocalVolumeRefused, reason, says)
		require.Contains(t, message, says)
		require.Nil(t, b.volume())
		require.Empty(t, b.object.Finalizers)
	}
	b := newLocalBed(t, func(o *flexlvmv1.LocalVolume) { o.Spec.Size = "1Ti" })
	reason, message := b.sync()
	require.Equal(t, flexlvmv1.LocalVolumeNoRoom, reason)
	require.Equal(t, "node node-1 has no room for 1 TiB in volume group \"flexlvm\" (`kubectl flexlvm status` shows how much is free); it is retried", message)
	require.Nil(t, b.volume())
	b.sync()
	require.Equal(t, 1, b.writes, "nothing is written while nothing changes for its user")
	b.cast.ledger.Report(ledgertest.Report("node-1", 9*ledgertest.OneGiB))
	b.sync()
	require.Equal(t, 1, b.writes, "whatever is free")
}

// The deletion of a LocalVolume deletes its volume only while no claim is bound to it.
func TestLocalVolumeIsGivenUp(t *testing.T) {
	deleted := func(b *localBed) {
		now := metav1.Now()
		b.object.DeletionTimestamp = &now
	}
	b := newLocalBed(t)
	b.sync()
	b.become(corev1.VolumeBound, "claim-uid")
	reason, _ := b.sync()
	require.Equal(t, flexlvmv1.LocalVolumeBound, reason)
	deleted(b)
	reason, message := b.sync()
	require.Equal(t, flexlvmv1.LocalVolumeInUse, reason)
	require.Contains(t, message, "claim team/data is bound")
	b.become(corev1.VolumeAvailable, "claim-uid") // the claim is about to be bound
	reason, _ = b.sync()
	require.Equal(t, flexlvmv1.LocalVolumeInUse, reason)
	require.NotNil(t, b.volume())

	b.become(corev1.VolumeReleased, "claim-uid")
	b.sync()
	require.Nil(t, b.object)
	require.NotNil(t, b.volume(), "its node deletes it, or keeps it, as the reclaim policy says")

	b = newLocalBed(t)
	b.sync()
	b.become(corev1.VolumeBound, "claim-uid")
	b.sync()
	b.become(corev1.VolumeAvailable, "") // a person makes the volume available for another claim
	reason, message = b.sync()
	require.Equal(t, flexlvmv1.LocalVolumeReleased, reason)
	require.Contains(t, message, "may hold its data")
	deleted(b)
	b.sync()
	require.Nil(t, b.object)
	require.NotNil(t, b.volume(), "it may hold what the claim has written")

	b = newLocalBed(t)
	b.sync()
	object := b.volume()
	object.Spec.ClaimRef.Name = "another"
	require.NoError(t, b.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), object, ""))
	deleted(b)
	b.sync()
	require.Nil(t, b.object)
	require.NotNil(t, b.volume(), "a person keeps it for another claim")

	b = newLocalBed(t)
	b.sync()
	b.become(corev1.VolumeAvailable, "")
	seen := b.volume()
	deleted(b)
	b.sync()
	require.Nil(t, b.volume())
	require.Nil(t, b.object)
	i := slices.IndexFunc(b.client.Actions(), func(a kubetesting.Action) bool { return a.GetVerb() == "delete" })
	require.Equal(t, &metav1.Preconditions{UID: &seen.UID, ResourceVersion: &seen.ResourceVersion},
		b.client.Actions()[i].(kubetesting.DeleteAction).GetDeleteOptions().Preconditions, "what was seen, or nothing")

	// If its node is down, the LocalVolume still goes, so that the deletion of its namespace does not wait for the
	// node.
	b = newLocalBed(t)
	b.sync()
	b.become(corev1.VolumeAvailable, "")
	away, now := b.volume(), metav1.Now()
	away.DeletionTimestamp = &now
	b.client.PrependReactor("delete", "persistentvolumes", func(kubetesting.Action) (bool, runtime.Object, error) {
		require.NoError(t, b.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), away, ""))
		return true, nil, errDied
	})
	deleted(b)
	b.sync()
	require.NotNil(t, b.volume().DeletionTimestamp)
	require.NotNil(t, b.object, "the process was killed right after")
	b.sync()
	require.Nil(t, b.object)

	b = newLocalBed(t)
	b.sync()
	object = b.volume()
	object.Annotations[pv.AnnotationDeclared] = "other/data"
	require.NoError(t, b.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), object, ""))
	deleted(b)
	b.sync()
	require.Nil(t, b.object)
	require.NotNil(t, b.volume(), "it is somebody else's")
}

// A volume whose node is gone is reported neither as made nor as about to be made.
func TestLocalVolumeWhoseNodeIsGone(t *testing.T) {
	for _, state := range []flexlvmv1.DeclaredState{flexlvmv1.DeclaredWaiting, flexlvmv1.DeclaredMade} {
		b := newLocalBed(t)
		b.sync()
		b.report(state, "")
		before, _ := b.sync()
		nodes := b.cast.nodes
		b.cast.nodes = nodes[1:]
		require.NoError(t, b.client.Tracker().Add(nodes[0]))
		reason, _ := b.sync()
		require.Equal(t, before, reason, "the cache alone does not know it")
		require.NoError(t, b.client.CoreV1().Nodes().Delete(t.Context(), "node-1", metav1.DeleteOptions{}))
		reason, message := b.sync()
		require.Equal(t, flexlvmv1.LocalVolumeNodeGone, reason)
		require.Contains(t, message, "node node-1 is gone from the cluster")
		require.NotNil(t, b.volume(), "it may come back")
		b.cast.nodes = nodes
		reason, _ = b.sync()
		require.Equal(t, before, reason)

		b.cast.nodes = nodes[1:]
		b.sync()
		now := metav1.Now()
		b.object.DeletionTimestamp = &now
		b.sync()
		require.Nil(t, b.object)
		require.Nil(t, b.volume())
	}
}

// A node lists a limited number of volumes. For the others, the message says why nothing is known.
func TestLocalVolumeThatItsNodeDoesNotList(t *testing.T) {
	b := newLocalBed(t)
	b.sync()
	r := ledgertest.Report("node-1", 10*ledgertest.OneGiB)
	for i := range flexlvmv1.MaxDeclaredVolumes {
		r.Status.DeclaredVolumes = append(r.Status.DeclaredVolumes, flexlvmv1.DeclaredVolume{Name: fmt.Sprintf("local-%d", i), State: flexlvmv1.DeclaredMade})
	}
	require.NoError(t, b.reports.Add(r))
	reason, message := b.sync()
	require.Equal(t, flexlvmv1.LocalVolumeMaking, reason)
	require.Contains(t, message, "more than 256 volumes wait for their claims there")
	b.report(flexlvmv1.DeclaredMade, "")
	reason, _ = b.sync()
	require.Equal(t, flexlvmv1.LocalVolumeMade, reason)
}

// If the API server rejects the PersistentVolume permanently, the LocalVolume's condition gives the reason.
func TestLocalVolumeWhosePersistentVolumeIsRefused(t *testing.T) {
	b := newLocalBed(t)
	b.client.PrependReactor("create", "persistentvolumes", func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumes"}, localPV, errors.New("a policy of the cluster"))
	})
	reason, message := b.sync()
	require.Equal(t, flexlvmv1.LocalVolumeRefused, reason)
	require.Contains(t, message, "a policy of the cluster")
	require.Nil(t, b.volume())
}

// A PersistentVolume that was deleted is not created again: its volume may have held data.
func TestLocalVolumeThatIsGone(t *testing.T) {
	b := newLocalBed(t)
	b.sync()
	require.NoError(t, b.client.CoreV1().PersistentVolumes().Delete(t.Context(), localPV, metav1.DeleteOptions{}))
	reason, message := b.sync()
	require.Equal(t, flexlvmv1.LocalVolumeGone, reason)
	require.Contains(t, message, "is not created again")
	require.Nil(t, b.volume())
}
