package provision

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestCapacityName(t *testing.T) {
	long := strings.Repeat("c", 200)
	require.Equal(t, "fast.node-1-", capacityName("fast", "node-1")[:12])
	names := map[string]bool{}
	for _, pair := range [][2]string{{"fast", "node-1"}, {"fast.node", "1"}, {"fast", "node.1"}, {long, long + "1"}, {long, long + "2"}, {long + "." + long, "n"}} {
		name := capacityName(pair[0], pair[1])
		require.Empty(t, validation.IsDNS1123Subdomain(name), name)
		require.False(t, names[name], "two share the name %s", name)
		names[name] = true
	}
}

// A stage is a publisher with a fake API server, one node and two classes.
type stage struct {
	*publisher
	client  *fake.Clientset
	factory informers.SharedInformerFactory
	now     time.Time
}

func storageClass(name, group string) *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "flexlvm.io", Parameters: map[string]string{"volumeGroup": group},
		VolumeBindingMode: ptrTo(storagev1.VolumeBindingWaitForFirstConsumer),
	}
}

func ptrTo[T any](v T) *T { return &v }

// within returns the size of the largest linear volume that fits in room.
func within(room volume.Bytes) volume.Bytes {
	return volume.Largest([]volume.Bytes{room}, volume.Spec{Layout: volume.Linear}, volume.DefaultExtent)
}

func storageOf(node string, allocatable volume.Bytes) *flexlvmv1.NodeStorage {
	return &flexlvmv1.NodeStorage{
		ObjectMeta: metav1.ObjectMeta{Name: node, UID: types.UID("report-of-" + node)},
		Status: flexlvmv1.NodeStorageStatus{Pools: []flexlvmv1.Pool{{
			Name: "flexlvm", UUID: "u", Allocatable: *resource.NewQuantity(int64(allocatable), resource.BinarySI),
		}}},
	}
}

func newStage(t *testing.T) *stage {
	s := &stage{now: time.Unix(1000, 0)}
	foreign := storageClass("foreign", "flexlvm")
	foreign.Provisioner = "example.com/other"
	wrong := storageClass("wrong", "flexlvm")
	wrong.Parameters["colour"] = "blue"
	s.client = fake.NewClientset(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{corev1.LabelHostname: "host-1"}}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "nameless"}},
		storageClass("fast", "flexlvm"), storageClass("slow", "disks"), foreign, wrong,
	)
	s.factory = informers.NewSharedInformerFactory(s.client, 0)
	s.publisher = &publisher{
		client: s.client, namespace: "flexlvm-system", metrics: NewMetrics(),
		listers: Listers{
			Nodes:   s.factory.Core().V1().Nodes().Lister(),
			Classes: s.factory.Storage().V1().StorageClasses().Lister(),
			Claims:  s.factory.Core().V1().PersistentVolumeClaims().Lister(),
		},
		capacities: s.factory.Storage().V1().CSIStorageCapacities().Lister().CSIStorageCapacities("flexlvm-system"),
		queue:      workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Millisecond, time.Second)),
	}
	s.ledger = ledger.New(func() time.Time { return s.now }, s.enqueue)
	s.factory.Start(t.Context().Done())
	s.factory.WaitForCacheSync(t.Context().Done())
	return s
}

// there returns the capacities in the API, once the informer has them.
func (s *stage) there(t *testing.T) []storagev1.CSIStorageCapacity {
	t.Helper()
	var list *storagev1.CSIStorageCapacityList
	require.Eventually(t, func() bool {
		var err error
		if list, err = s.client.StorageV1().CSIStorageCapacities("flexlvm-system").List(t.Context(), metav1.ListOptions{}); err != nil {
			return false
		}
		cached := s.factory.Storage().V1().CSIStorageCapacities().Informer().GetStore().List()
		return len(cached) == len(list.Items) && !slices.ContainsFunc(list.Items, func(c storagev1.CSIStorageCapacity) bool {
			return !slices.ContainsFunc(cached, func(o any) bool {
				return o.(*storagev1.CSIStorageCapacity).Capacity.Equal(*c.Capacity)
			})
		})
	}, time.Minute, time.Millisecond)
	return list.Items
}

func (s *stage) writes() (n int) {
	for _, a := range s.client.Actions() {
		if a.GetResource().Resource == "csistoragecapacities" && slices.Contains([]string{"create", "update", "delete"}, a.GetVerb()) {
			n++
		}
	}
	return n
}

func TestPublish(t *testing.T) {
	s := newStage(t)
	require.NoError(t, s.publish(t.Context(), "node-1"))
	require.Empty(t, s.there(t), "a node that has not reported offers nothing")

	s.ledger.Report(storageOf("node-1", 10*volume.GiB))
	require.NoError(t, s.publish(t.Context(), "node-1"))
	all := s.there(t)
	require.Len(t, all, 1, "no pool, no offer; no class of others, none that is wrong")
	got := all[0]
	require.Equal(t, "fast", got.StorageClassName)
	require.Equal(t, map[string]string{corev1.LabelHostname: "host-1"}, got.NodeTopology.MatchLabels)
	require.Equal(t, int64(within(10*volume.GiB)), got.Capacity.Value())
	require.Equal(t, got.Capacity, got.MaximumVolumeSize)
	require.Equal(t, []metav1.OwnerReference{{APIVersion: "flexlvm.io/v1", Kind: "NodeStorage", Name: "node-1", UID: "report-of-node-1"}}, got.OwnerReferences)
	require.Equal(t, 1, s.writes())

	require.NoError(t, s.publish(t.Context(), "node-1"))
	require.Equal(t, 1, s.writes(), "nothing has changed, nothing is written")

	s.ledger.Report(storageOf("node-1", 5*volume.GiB))
	require.NoError(t, s.publish(t.Context(), "node-1"))
	require.Equal(t, 2, s.writes(), "one write for a class")
	require.Equal(t, int64(within(5*volume.GiB)), s.there(t)[0].Capacity.Value())

	s.ledger.Forget(storageOf("node-1", 0))
	require.NoError(t, s.publish(t.Context(), "node-1"))
	require.Empty(t, s.there(t))

	s.ledger.Report(storageOf("nameless", 10*volume.GiB))
	require.NoError(t, s.publish(t.Context(), "nameless"))
	require.Empty(t, s.there(t), "without a hostname the scheduler could not find it")
}

// ExpireReservations returns the time at which the next hold or reservation expires, or zero if none is left.
func TestReservationsExpire(t *testing.T) {
	s := newStage(t)
	require.Zero(t, s.ledger.ExpireReservations("node-1"))
	s.ledger.Report(storageOf("node-1", 10*volume.GiB))
	want := ledger.Want{PV: "a", Spec: volume.Spec{Group: "flexlvm", Name: "a", Size: volume.GiB, Layout: volume.Linear}}
	other := want
	other.PV = "b"
	_, err := s.ledger.Reserve("node-1", []ledger.Want{want, other})
	require.NoError(t, err)
	require.Equal(t, s.now.Add(ledger.OtherClaimTime), s.ledger.ExpireReservations("node-1"))
	s.now = s.now.Add(ledger.OtherClaimTime)
	require.Equal(t, s.now.Add(ledger.ReservationTime-ledger.OtherClaimTime), s.ledger.ExpireReservations("node-1"))
	s.ledger.Forget(storageOf("node-1", 0))
	s.now = s.now.Add(ledger.ReservationTime)
	require.Zero(t, s.ledger.ExpireReservations("node-1"), "also where there is no report")
}

// If busy disks are avoided, a busy node's capacity shrinks, but its maximum volume size stays.
func TestPublishLoad(t *testing.T) {
	s := newStage(t)
	busy := storageOf("node-1", 10*volume.GiB)
	busy.Status.Pools[0].BusyPercent = 80
	s.ledger.Report(busy)
	maxSize := int64(within(10 * volume.GiB))
	require.NoError(t, s.publish(t.Context(), "node-1"))
	require.Equal(t, maxSize, s.there(t)[0].Capacity.Value(), "off by default")

	s.avoidBusy = true
	require.NoError(t, s.publish(t.Context(), "node-1"))
	require.Equal(t, maxSize/100*20, s.there(t)[0].Capacity.Value())
	require.Equal(t, maxSize, s.there(t)[0].MaximumVolumeSize.Value())
	busy.Status.Pools[0].BusyPercent = 100
	s.ledger.Report(busy)
	require.NoError(t, s.publish(t.Context(), "node-1"))
	require.Equal(t, maxSize/100, s.there(t)[0].Capacity.Value(), "it is not shut")
}

// Leftovers of an earlier process and changes by others are corrected.
func TestPublishPutsRight(t *testing.T) {
	s := newStage(t)
	s.ledger.Report(storageOf("node-1", 10*volume.GiB))
	require.NoError(t, s.publish(t.Context(), "node-1"))
	right := s.there(t)[0]
	api := s.client.StorageV1().CSIStorageCapacities("flexlvm-system")

	stale := right.DeepCopy()
	stale.Name, stale.StorageClassName = "of-a-class-that-is-gone", "gone"
	_, err := api.Create(t.Context(), stale, metav1.CreateOptions{})
	require.NoError(t, err)
	wrong := right.DeepCopy()
	wrong.NodeTopology = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: "another"}}
	_, err = api.Update(t.Context(), wrong, metav1.UpdateOptions{})
	require.NoError(t, err)
	s.there(t)
	require.Eventually(t, func() bool {
		require.NoError(t, s.publish(t.Context(), "node-1"))
		all := s.there(t)
		return len(all) == 1 && all[0].NodeTopology.MatchLabels[corev1.LabelHostname] == "host-1"
	}, time.Minute, 5*time.Millisecond)
}

func TestPublishGoesOnWhereItStopped(t *testing.T) {
	s := newStage(t)
	s.ledger.Report(storageOf("node-1", 10*volume.GiB))
	var mended atomic.Bool
	s.client.PrependReactor("create", "csistoragecapacities", func(clienttesting.Action) (bool, runtime.Object, error) {
		return !mended.Load(), nil, errors.New("server is away")
	})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { s.run(ctx); close(done) }()
	require.Eventually(t, func() bool { return s.queue.NumRequeues("node-1") > 1 }, time.Minute, time.Millisecond)
	require.Empty(t, s.there(t))
	mended.Store(true)
	for end := time.Now().Add(time.Minute); len(s.there(t)) != 1; {
		require.True(t, time.Now().Before(end), "it does not go on")
	}
	stop()
	<-done
}

func TestWaitingRoomTellsNumbers(t *testing.T) {
	s := newStage(t)
	events := record.NewFakeRecorder(10)
	metrics := NewMetrics()
	room := newPendingClaims(s.ledger, s.listers, events, metrics)
	room.now = func() time.Time { return s.now }
	claim := func(name, class, size string, nodes ...string) {
		_, err := s.client.CoreV1().PersistentVolumeClaims("team").Create(t.Context(), &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID(name), Annotations: selected(nodes)},
			Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class, Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
			}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	claim("large", "fast", "20Gi")
	claim("small", "fast", "1Gi")
	claim("lost", "slow", "1Gi")
	claim("foreign", "foreign", "1Gi")
	claim("wrong", "wrong", "1Gi")
	claim("asked", "wrong", "1Gi", "node-1") // refused when it was provisioned
	require.Eventually(t, func() bool {
		return len(s.factory.Core().V1().PersistentVolumeClaims().Informer().GetStore().List()) == 6
	}, time.Minute, time.Millisecond)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "pod"}}
	for _, name := range []string{"large", "small", "lost", "foreign", "wrong", "asked", "unknown"} {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}})
	}
	s.ledger.Report(storageOf("node-1", 10*volume.GiB))
	room.handlePod(pod)
	require.Empty(t, events.Events, "the scheduler has not looked at it yet")

	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	room.handlePod(pod)
	room.handlePod(pod)
	require.Len(t, events.Events, 3, "once each")
	require.Equal(t, "claim_warnings_total wrong Refused 1, refusals_total 1", warnings(t, metrics), "a cluster autoscaler may be adding a node")
	maxSize := ledger.AmountOf(within(10 * volume.GiB))
	require.Equal(t, `Warning NoRoom no node has room for it: 21474836480 bytes (20 GiB) are asked for, and the most that any of 1 node with volume group "flexlvm" can give is `+
		maxSize+`, on node "node-1"; it is placed as soon as there is room: delete claims that nobody needs, enlarge the volume group, or add a node (`+"`kubectl flexlvm plan --claim 20Gi --class fast` shows each node)", <-events.Events)
	require.Equal(t, "Warning NoRoom no node has volume group \"disks\", which StorageClass \"slow\" asks for (1 node has reported); name the nodes' disks in a VolumeGroup (docs/volume-groups.md; `kubectl describe nodestorage NODE` shows its result), or run `flexlvm vg create --name disks DEVICE` on a node", <-events.Events)
	require.Contains(t, <-events.Events, `Warning ProvisioningFailed StorageClass "wrong": unknown parameter "colour"`)
	for range repeatAfter / recheckAfter {
		s.now = s.now.Add(recheckAfter)
		room.handlePod(pod)
	}
	require.Len(t, events.Events, 3, "and again while it lasts")
	require.Equal(t, "claim_warnings_total fast NoRoom 1, claim_warnings_total slow NoRoom 1, claim_warnings_total wrong Refused 2, refusals_total 2", warnings(t, metrics))
}

// Events cannot be revoked, so another event is sent when the last one is no longer true.
func TestWaitingRoomTellsWhatIsTrueNow(t *testing.T) {
	s := newStage(t)
	events := record.NewFakeRecorder(10)
	room := newPendingClaims(s.ledger, s.listers, events, NewMetrics())
	room.now = func() time.Time { return s.now }
	_, err := s.client.CoreV1().PersistentVolumeClaims("team").Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "data", UID: "data"},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptrTo("fast"), Resources: corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("20Gi")},
		}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return len(s.factory.Core().V1().PersistentVolumeClaims().Informer().GetStore().List()) == 1
	}, time.Minute, time.Millisecond)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "pod"},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable},
		}},
	}
	look := func() string {
		s.now = s.now.Add(recheckAfter)
		room.handlePod(pod)
		select {
		case event := <-events.Events:
			return event
		default:
			return ""
		}
	}
	require.Contains(t, look(), `Warning NoRoom no node has reported its volume groups`)
	require.Empty(t, look(), "nothing is new")
	s.ledger.Report(ledgertest.Report("node-1", 10*volume.GiB, closed("device /dev/sdb is missing")))
	require.Contains(t, look(), `Warning NoRoom no node has room for it: of 1 node with volume group "flexlvm" none can give any, and node "node-1" takes no new volumes in volume group "flexlvm": device /dev/sdb is missing`)
	s.ledger.Report(ledgertest.Report("node-1", 10*volume.GiB, closed("devices /dev/sdb, /dev/sdc are missing")))
	require.Empty(t, look(), "another reason of the same node is told with the next event")
	s.ledger.Report(storageOf("node-1", 10*volume.GiB))
	require.Contains(t, look(), `Warning NoRoom no node has room for it: 21474836480 bytes (20 GiB) are asked for`)
	s.ledger.Report(storageOf("node-1", 11*volume.GiB))
	require.Empty(t, look(), "other numbers are no other cause")
	s.ledger.Report(storageOf("node-1", 40*volume.GiB))
	require.Equal(t, `Normal Room there is room for it now, on node "node-1"; if its pod is not placed, the pod's events say why`, look())
	require.Empty(t, look(), "it is told once, and never to a claim that did not hear otherwise")
	s.ledger.Report(storageOf("node-1", 10*volume.GiB))
	require.Contains(t, look(), "Warning NoRoom no node has room for it", "however short a time ago it was told")
}

// The watches of claims and of pods are not synchronized, and the scheduler sets the same condition of a pod only
// once.
func TestWaitingRoomTellsAClaimThatIsSeenAfterItsPod(t *testing.T) {
	s := newStage(t)
	s.ledger.Report(storageOf("node-1", 10*volume.GiB))
	events := record.NewFakeRecorder(10)
	room := newPendingClaims(s.ledger, s.listers, events, NewMetrics())
	pods, err := newWaitingPods(s.client, nil, 10*time.Millisecond)
	require.NoError(t, err)
	_, err = pods.informer.AddEventHandler(handlerFuncs(room.handlePod, func(*corev1.Pod) {}))
	require.NoError(t, err)
	go pods.informer.RunWithContext(t.Context())

	_, err = s.client.CoreV1().Pods("team").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "pod"},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "large"},
		}}}},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable},
		}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(pods.informer.GetStore().List()) == 1 }, time.Minute, time.Millisecond)
	_, err = s.client.CoreV1().PersistentVolumeClaims("team").Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "large", UID: "large"},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptrTo("fast"), Resources: corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("20Gi")},
		}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(events.Events) == 1 }, time.Minute, time.Millisecond)
	require.Contains(t, <-events.Events, "Warning NoRoom no node has room for it")
}

// selected returns the annotations of a claim for which the scheduler has chosen a node; nil without a node.
func selected(nodes []string) map[string]string {
	if len(nodes) == 0 {
		return nil
	}
	return map[string]string{pv.AnnotationSelectedNode: nodes[0]}
}
