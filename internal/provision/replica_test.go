package provision_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const ownerUID = "5a0c1d2e-0b7c-4a52-8f3c-9f2b1a0c3d4e"

var imagesHash = replica.Hash("team-a", ownerUID, "images")

func forReplicas(c *storagev1.StorageClass) {
	c.Name, c.Parameters = "flexlvm-dataset", map[string]string{"kind": "dataset"}
}

// ofDataset makes a claim one for a replica, as the dataset controller does.
func ofDataset(c *corev1.PersistentVolumeClaim) {
	c.Name = "vm-images-0"
	c.Labels = map[string]string{replica.LabelDataset: imagesHash, replica.LabelOwner: ownerUID}
	c.Annotations = map[string]string{replica.AnnotationVolumeID: "images", replica.AnnotationEviction: "LRU"}
	c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "flexlvm.io/v1", Kind: "VolumeManager", Name: "vm", UID: ownerUID, Controller: ptr(true)}}
}

func manager() *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "vm", UID: ownerUID}}
}

func replicaCast(t *testing.T) *cast {
	c := newCast(t)
	c.owners = []*metav1.PartialObjectMetadata{manager()}
	return c
}

func replicaOptions() controller.ProvisionOptions {
	return controller.ProvisionOptions{PVName: pvName, PVC: claim(ofDataset), StorageClass: class(forReplicas), SelectedNodeName: "node-1"}
}

func TestProvisionAReplica(t *testing.T) {
	c := replicaCast(t)
	got, _, err := c.provisioner(t).Provision(context.Background(), replicaOptions())
	require.NoError(t, err)
	require.Equal(t, pvName, got.Name, "the volume's name is the same on all nodes, the PersistentVolume's is not")
	require.Equal(t, map[string]string{pv.LabelNode: "node-1", replica.LabelDataset: imagesHash, replica.LabelOwner: ownerUID}, got.Labels)
	require.Equal(t, "dataset", got.Spec.FlexVolume.Options[volume.OptionKind])
	require.Equal(t, "ds-"+imagesHash, got.Spec.FlexVolume.Options[volume.OptionVolume])
	require.NotContains(t, got.Spec.FlexVolume.Options, volume.OptionReadOnly)
	for name, want := range map[string]string{
		replica.AnnotationEviction: "LRU", replica.AnnotationReaders: "vm-images", replica.AnnotationOwner: "vm",
		replica.AnnotationVolumeID: "images", pv.AnnotationReclaim: "immediate", pv.AnnotationCharged: decimal(ledgertest.OneGiB),
	} {
		require.Equal(t, want, got.Annotations[name], name)
	}
	require.NotContains(t, got.Annotations, replica.AnnotationComplete, "it holds nothing yet")
	require.Contains(t, got.Finalizers, pv.Finalizer)

	o := replicaOptions()
	delete(o.PVC.Annotations, replica.AnnotationEviction)
	got, _, err = replicaCast(t).provisioner(t).Provision(context.Background(), o)
	require.NoError(t, err)
	require.Equal(t, "Never", got.Annotations[replica.AnnotationEviction], "what nobody allows is not evicted")
}

// The content of a writable replica exists nowhere else, so it is kept when its node is lost.
func TestProvisionAReplicaThatConsumersWrite(t *testing.T) {
	for value, want := range map[string]string{"": "release", replica.Writable: "keep"} {
		o := replicaOptions()
		o.StorageClass.Parameters["onNodeLoss"] = "release"
		if value != "" {
			o.PVC.Annotations[replica.AnnotationWritable] = value
		}
		got, _, err := replicaCast(t).provisioner(t).Provision(context.Background(), o)
		require.NoError(t, err)
		require.Equal(t, want, got.Annotations[pv.AnnotationOnNodeLoss])
	}
}

// Without onNodeLoss in its class, the claim of a replica is kept, as any other is.
func TestProvisionAReplicaOfAClassThatKeepsClaims(t *testing.T) {
	o := replicaOptions()
	delete(o.StorageClass.Parameters, "onNodeLoss")
	got, _, err := replicaCast(t).provisioner(t).Provision(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, "keep", got.Annotations[pv.AnnotationOnNodeLoss])
}

// The author of a claim can set its labels, so a claim for a replica is checked.
func TestReplicasThatAreRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*cast, *controller.ProvisionOptions)
		err    string
	}{
		"no owner":           {func(_ *cast, o *controller.ProvisionOptions) { o.PVC.OwnerReferences = nil }, "no VolumeManager controls it"},
		"an owner beside":    {func(_ *cast, o *controller.ProvisionOptions) { o.PVC.OwnerReferences[0].Controller = nil }, "no VolumeManager controls it"},
		"an owner elsewhere": {func(_ *cast, o *controller.ProvisionOptions) { o.PVC.OwnerReferences[0].APIVersion = "example.org/v1" }, "no VolumeManager controls it"},
		"nearly our group":   {func(_ *cast, o *controller.ProvisionOptions) { o.PVC.OwnerReferences[0].APIVersion = "flexlvm.iox/v1" }, "no VolumeManager controls it"},
		"another kind":       {func(_ *cast, o *controller.ProvisionOptions) { o.PVC.OwnerReferences[0].Kind = "NodeStorage" }, "no VolumeManager controls it"},
		"no volume":          {func(_ *cast, o *controller.ProvisionOptions) { o.PVC.Annotations = nil }, "the annotation flexlvm.io/volume-id, of 0 bytes, is not the id of a volume"},
		"an endless id": {func(_ *cast, o *controller.ProvisionOptions) {
			id := strings.Repeat("a", 200<<10)
			o.PVC.Annotations[replica.AnnotationVolumeID] = id
			o.PVC.Labels[replica.LabelDataset] = replica.Hash(o.PVC.Namespace, ownerUID, id)
		}, "the annotation flexlvm.io/volume-id, of 204800 bytes, is not the id of a volume"},
		"another volume": {func(_ *cast, o *controller.ProvisionOptions) {
			o.PVC.Annotations[replica.AnnotationVolumeID] = "labels"
		}, `is not that of volume "labels"`},
		"another namespace's": {func(_ *cast, o *controller.ProvisionOptions) { o.PVC.Namespace = "thief" }, `is not that of volume "images"`},
		"another dataset's":   {func(_ *cast, o *controller.ProvisionOptions) { o.PVC.Labels[replica.LabelDataset] = "0123456789abcdef" }, "is not that of volume"},
		"an empty label":      {func(_ *cast, o *controller.ProvisionOptions) { o.PVC.Labels[replica.LabelDataset] = "" }, "is not that of volume"},
		"the owner is gone":   {func(c *cast, _ *controller.ProvisionOptions) { c.owners = nil }, `VolumeManager "vm", which this claim is to be a replica for, is not in namespace "team-a"`},
		"the owner is new":    {func(c *cast, _ *controller.ProvisionOptions) { c.owners[0].UID = "another" }, `VolumeManager "vm" is not the one that this claim is a replica for`},
		"an ordinary class":   {func(_ *cast, o *controller.ProvisionOptions) { o.StorageClass = class(nil) }, `StorageClass "flexlvm" is not for replicas of datasets; name one with parameter kind "dataset"`},
		"an ordinary claim":   {func(_ *cast, o *controller.ProvisionOptions) { o.PVC = claim(nil) }, `StorageClass "flexlvm-dataset" is for replicas of datasets (kind "dataset")`},
		"a class that binds at once": {func(_ *cast, o *controller.ProvisionOptions) {
			o.StorageClass.VolumeBindingMode = ptr(storagev1.VolumeBindingImmediate)
		}, "use volumeBindingMode WaitForFirstConsumer"},
		"a class that keeps volumes": {func(_ *cast, o *controller.ProvisionOptions) {
			o.StorageClass.ReclaimPolicy = ptr(corev1.PersistentVolumeReclaimRetain)
		}, `StorageClass "flexlvm-dataset" has reclaimPolicy Retain, and a replica whose volume is kept keeps its node from ever having another; use Delete`},
		"an unknown policy": {func(_ *cast, o *controller.ProvisionOptions) { o.PVC.Annotations[replica.AnnotationEviction] = "lru" }, `flexlvm.io/eviction-policy "lru": is not known`},
		"a copy": {func(_ *cast, o *controller.ProvisionOptions) {
			o.StorageClass.Parameters = map[string]string{"kind": "dataset", "layout": "thin", "thinPool": "p"}
			cloning("other")(o.PVC)
		}, "dataSource: a replica is filled from the source of its VolumeManager"},
	} {
		t.Run(name, func(t *testing.T) {
			c, o := replicaCast(t), replicaOptions()
			tt.change(c, &o)
			_, state, err := c.provisioner(t).Provision(context.Background(), o)
			require.ErrorContains(t, err, tt.err)
			require.Equal(t, controller.ProvisioningFinished, state)
			require.Equal(t, codes.InvalidArgument, status.Code(err), "an event tells it, and it is not tried again at once")
			require.Equal(t, 1, c.refused)
			require.Equal(t, 10*ledgertest.OneGiB, roomFor(t, c, volume.Claim), "nothing is reserved for it")
		})
	}
}

func roomFor(t *testing.T, c *cast, kind volume.Kind) volume.Bytes {
	t.Helper()
	offer, has := c.ledger.Offer("node-1", volume.Spec{Group: "flexlvm", Kind: kind})
	require.True(t, has)
	return offer.Room
}

// While the API server does not answer, no claim is served as a replica's.
func TestReplicaWhoseOwnerCannotBeRead(t *testing.T) {
	c := replicaCast(t)
	c.lost = errors.New("the server is away")
	_, _, err := c.provisioner(t).Provision(context.Background(), replicaOptions())
	require.ErrorContains(t, err, "look up the owner of a replica: the server is away; it is retried")
	require.NotErrorIs(t, err, &controlplane.Refusal{})
	require.NotEqual(t, codes.InvalidArgument, status.Code(err))
	require.Zero(t, c.refused)

	c = replicaCast(t)
	c.owners[0].DeletionTimestamp = &metav1.Time{}
	_, _, err = c.provisioner(t).Provision(context.Background(), replicaOptions())
	require.ErrorContains(t, err, "is being deleted")
}

// TestNeverTwoReplicasOnANode checks that two replicas, which would be the same volume, are never on one node. The
// claim is rescheduled, whether the other replica exists, is being deleted, was just created, or cannot be parsed.
func TestNeverTwoReplicasOnANode(t *testing.T) {
	other := func(change func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
		o := replicaOptions()
		o.PVName = "pvc-other"
		object, _, err := replicaCast(t).provisioner(t).Provision(context.Background(), o)
		require.NoError(t, err)
		change(object)
		return object
	}
	for name, change := range map[string]func(*corev1.PersistentVolume){
		"bound":      func(o *corev1.PersistentVolume) { o.Status.Phase = corev1.VolumeBound },
		"released":   func(o *corev1.PersistentVolume) { o.Status.Phase = corev1.VolumeReleased },
		"going":      func(o *corev1.PersistentVolume) { o.DeletionTimestamp = &metav1.Time{} },
		"unreadable": func(o *corev1.PersistentVolume) { o.Spec.FlexVolume.Options["newer"] = "x" },
	} {
		t.Run(name, func(t *testing.T) {
			c := replicaCast(t)
			c.volumes = []*corev1.PersistentVolume{other(change)}
			_, state, err := c.provisioner(t).Provision(context.Background(), replicaOptions())
			require.ErrorContains(t, err, `node "node-1" has a replica of this dataset already, or is not rid of it yet (PersistentVolume "pvc-other"); the scheduler is asked for another node`)
			require.Equal(t, controller.ProvisioningReschedule, state)
		})
	}
	t.Run("left over, without a PersistentVolume", func(t *testing.T) {
		for orphan, want := range map[string]string{
			"flexlvm/ds-" + imagesHash:    `node "node-1" has a volume ds-` + imagesHash + ` without a PersistentVolume`,
			"another/ds-" + imagesHash:    "",
			"flexlvm/ds-0123456789abcdef": "",
		} {
			c := replicaCast(t)
			report := ledgertest.Report("node-1", 10*ledgertest.OneGiB)
			pool, name, _ := strings.Cut(orphan, "/")
			report.Status.Orphans = []flexlvmv1.Orphan{{Pool: pool, Name: name, State: "ready"}}
			c.ledger = ledgertest.New(t, report).Ledger
			_, state, err := c.provisioner(t).Provision(context.Background(), replicaOptions())
			if want == "" {
				require.NoError(t, err)
				continue
			}
			require.ErrorContains(t, err, want)
			require.Equal(t, controller.ProvisioningReschedule, state)
			report.Status.Orphans = nil
			c.ledger.Report(report)
			_, _, err = c.provisioner(t).Provision(context.Background(), replicaOptions())
			require.NoError(t, err, "a person has looked at it")
		}
	})
	t.Run("about to be written", func(t *testing.T) {
		c := replicaCast(t)
		o := replicaOptions()
		o.PVName = "pvc-other"
		_, _, err := c.provisioner(t).Provision(context.Background(), o)
		require.NoError(t, err)
		_, state, err := c.provisioner(t).Provision(context.Background(), replicaOptions())
		require.ErrorContains(t, err, `has a replica of this dataset already, or is about to (PersistentVolume "pvc-other")`)
		require.Equal(t, controller.ProvisioningReschedule, state)
		_, _, err = c.provisioner(t).Provision(context.Background(), o)
		require.NoError(t, err, "itself is not in its way")
	})
	t.Run("in the books, and not seen by the watch any more", func(t *testing.T) {
		c := replicaCast(t)
		c.ledger.Written(other(func(*corev1.PersistentVolume) {}))
		_, state, err := c.provisioner(t).Provision(context.Background(), replicaOptions())
		require.ErrorContains(t, err, "has a replica of this dataset already")
		require.Equal(t, controller.ProvisioningReschedule, state)
	})
	t.Run("on another node, or of another dataset", func(t *testing.T) {
		c := replicaCast(t)
		c.volumes = []*corev1.PersistentVolume{
			other(func(o *corev1.PersistentVolume) { o.Labels[pv.LabelNode] = "node-2" }),
			other(func(o *corev1.PersistentVolume) {
				o.Name, o.Labels[replica.LabelDataset] = "pvc-more", "0123456789abcdef"
			}),
		}
		_, _, err := c.provisioner(t).Provision(context.Background(), replicaOptions())
		require.NoError(t, err)
	})
}

// TestRoomOfReplicas checks that the room of replicas is offered to claims, but never to other replicas: datasets
// would evict each other in turn.
func TestRoomOfReplicas(t *testing.T) {
	held := func(p *flexlvmv1.Pool) {
		p.Reclaimable, p.ReclaimableReplicas = ledgertest.Quantity(4*ledgertest.OneGiB), ledgertest.Quantity(3*ledgertest.OneGiB)
	}
	c := replicaCast(t)
	c.ledger = ledgertest.New(t, ledgertest.Report("node-1", 5*ledgertest.OneGiB, held)).Ledger
	require.Equal(t, 5*ledgertest.OneGiB, roomFor(t, c, volume.Claim))
	require.Equal(t, 2*ledgertest.OneGiB, roomFor(t, c, volume.Dataset))

	larger := replicaOptions()
	sized("3Gi")(larger.PVC)
	_, state, err := c.provisioner(t).Provision(context.Background(), larger)
	require.ErrorContains(t, err, `can still promise `+decimal(2*ledgertest.OneGiB)+` bytes`)
	require.Equal(t, controller.ProvisioningReschedule, state)
	_, err = c.ledger.Reserve("node-1", []ledger.Want{ledgertest.Want("a", 4*volume.GiB)})
	require.NoError(t, err, "a claim may have it")
	require.Zero(t, roomFor(t, c, volume.Dataset))
	_, state, err = c.provisioner(t).Provision(context.Background(), replicaOptions())
	require.ErrorContains(t, err, "can still promise 0 bytes")
	require.Equal(t, controller.ProvisioningReschedule, state)
}

// TestRoomOfThePodsOwnDataset checks that the replica that a pod reads does not count as room for the pod's other
// claims, because the pod keeps it. Other replicas do count.
func TestRoomOfThePodsOwnDataset(t *testing.T) {
	for name, tt := range map[string]struct {
		more   volume.Bytes // held by other replicas
		change func(*corev1.PersistentVolume)
		reads  string // volume of the pod's other claim
		fits   bool
	}{
		"its own alone could go":     {reads: replica.ReadersPV(imagesHash)},
		"others could go as well":    {more: 4 * ledgertest.OneGiB, reads: replica.ReadersPV(imagesHash), fits: true},
		"it reads another":           {reads: replica.ReadersPV("0123456789abcdef"), fits: true},
		"it reads something else":    {reads: "flexlvm-ds-mine", fits: true},
		"its own goes never":         {reads: replica.ReadersPV(imagesHash), change: func(o *corev1.PersistentVolume) { o.Annotations[replica.AnnotationEviction] = "Never" }, fits: true},
		"its own is incomplete":      {reads: replica.ReadersPV(imagesHash), change: func(o *corev1.PersistentVolume) { delete(o.Annotations, replica.AnnotationComplete) }, fits: true},
		"its own is on another node": {reads: replica.ReadersPV(imagesHash), change: func(o *corev1.PersistentVolume) { o.Labels[pv.LabelNode] = "node-2" }, fits: true},
	} {
		t.Run(name, func(t *testing.T) {
			larger := replicaOptions()
			sized("3Gi")(larger.PVC)
			own, _, err := replicaCast(t).provisioner(t).Provision(context.Background(), larger)
			require.NoError(t, err)
			own.Annotations[replica.AnnotationComplete] = replica.Complete
			if tt.change != nil {
				tt.change(own)
			}
			c := newCast(t)
			c.ledger = ledgertest.New(t, ledgertest.Report("node-1", 10*ledgertest.OneGiB+tt.more, func(p *flexlvmv1.Pool) {
				p.Reclaimable, p.ReclaimableReplicas = ledgertest.Quantity(4*ledgertest.OneGiB+tt.more), ledgertest.Quantity(4*ledgertest.OneGiB+tt.more)
			})).Ledger
			own.Name = "pvc-own"
			c.ledger.Written(own)
			require.NoError(t, scratch(t, c, tt.reads, "1Gi"), "there is room without")
			err = scratch(t, c, tt.reads, "5Gi")
			if tt.fits {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, "and what this pod reads (ds-"+imagesHash+") does not count, for it stays")
			offer, _ := c.ledger.Offer("node-1", volume.Spec{Group: "flexlvm"})
			require.Less(t, offer.MaxVolumeSize, 5*volume.GiB, "the scheduler would choose this node again")
		})
	}
}

// scratch provisions a claim of a pod whose other claim is already bound.
func scratch(t *testing.T, c *cast, bound, size string) error {
	c.claims = []*corev1.PersistentVolumeClaim{other("read", "1Gi", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = bound })}
	c.volumes = []*corev1.PersistentVolume{{ObjectMeta: metav1.ObjectMeta{Name: bound}}} // it is on several nodes
	pod := using("data", "read")
	pod.Spec.Volumes = pod.Spec.Volumes[:2]
	c.pods = []*corev1.Pod{pod}
	o := options("node-1")
	sized(size)(o.PVC)
	_, _, err := c.provisioner(t).Provision(context.Background(), o)
	return err
}

// TestReadersAreChargedNothing checks that the single PersistentVolume for all readers takes no room of any node,
// with or without labels.
func TestReadersAreChargedNothing(t *testing.T) {
	c := replicaCast(t)
	object, _, err := c.provisioner(t).Provision(context.Background(), replicaOptions())
	require.NoError(t, err)
	readers := object.DeepCopy()
	readers.Name, readers.Finalizers = replica.ReadersPV(imagesHash), nil
	readers.Spec.FlexVolume.Options[volume.OptionReadOnly] = "true"
	c = replicaCast(t)
	for _, labels := range []map[string]string{{replica.LabelDataset: imagesHash}, readers.Labels} {
		readers.Labels = labels
		c.ledger.Written(readers)
		c.ledger.Inherited(readers)
		require.Equal(t, 10*ledgertest.OneGiB, roomFor(t, c, volume.Claim))
	}
	c.volumes = []*corev1.PersistentVolume{readers}
	readers.Labels = map[string]string{replica.LabelDataset: imagesHash}
	_, _, err = c.provisioner(t).Provision(context.Background(), replicaOptions())
	require.NoError(t, err, "nor is it a replica")
}

// A replica cannot be cloned, through either of its PersistentVolumes.
func TestNoCopiesOfReplicas(t *testing.T) {
	for _, readOnly := range []string{"", "true"} {
		c := cloneCast(t)
		c.volumes[0].Spec.FlexVolume.Options[volume.OptionKind] = "dataset"
		if readOnly != "" {
			c.volumes[0].Spec.FlexVolume.Options[volume.OptionReadOnly] = readOnly
		}
		_, _, err := c.provisioner(t).Provision(context.Background(), cloneOptions("node-1"))
		require.ErrorContains(t, err, "its volume is a replica of a dataset")
		require.Equal(t, codes.InvalidArgument, status.Code(err))
	}
}
