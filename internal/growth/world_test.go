package growth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	cluster   = "6e2c0b0a-92a7-4b52-a9f5-2f7b3f1f8a01"
	groupUUID = "XfRyGj-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3S"
	gib       = volume.GiB
)

// A world is one node with its volume group, its claims, kube-controller-manager, kubelet, the node daemon's real
// plan, and the controller under test with a real ledger.
type world struct {
	t      *testing.T
	now    time.Time
	client *fake.Clientset
	api    map[string]runtime.Object // content of the API, by namespace and name
	size   volume.Bytes              // of the pool
	made   map[string]*inventory.Volume
	spec   volume.Spec // of every claim's volume
	door   pv.Door

	// dies is the number of writes until the provisioner is killed; negative: never. If lost is set, the last of them
	// is carried out, but not answered.
	dies int
	lost bool
	dead bool

	claims, volumes cache.Indexer
	ledger          *ledger.Ledger
	events          *record.FakeRecorder
	told            []string
	c               *Controller
	writes          int
	evicted         int
	asked           map[string]volume.Bytes // the largest size that a claim has ever requested
}

var errKilled = errors.New("killed")

func newWorld(t *testing.T, size volume.Bytes, change ...func(*volume.Spec)) *world {
	w := &world{
		t: t, now: time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC), client: &fake.Clientset{}, api: map[string]runtime.Object{}, size: size, made: map[string]*inventory.Volume{},
		dies: -1, asked: map[string]volume.Bytes{},
		spec: volume.Spec{Group: "flexlvm", GroupUUID: groupUUID, Layout: volume.Linear, Kind: volume.Claim, Cluster: cluster, Size: gib},
	}
	for _, c := range change {
		c(&w.spec)
	}
	w.client.AddReactor("patch", "*", w.patch)
	w.client.AddReactor("get", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		name := action.(clienttesting.GetAction).GetName()
		object, there := w.api[action.GetNamespace()+"/"+name]
		if !there {
			return true, nil, apierrors.NewNotFound(action.GetResource().GroupResource(), name)
		}
		return true, object.DeepCopyObject(), nil
	})
	w.restart()
	return w
}

func thin(ratio volume.Ratio) func(*volume.Spec) {
	return func(s *volume.Spec) { s.Layout, s.ThinPool, s.Ratio = volume.Thin, "thinpool", ratio }
}

// restart starts a new provisioner process.
func (w *world) restart() {
	index := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	w.claims, w.volumes = cache.NewIndexer(cache.MetaNamespaceKeyFunc, index), cache.NewIndexer(cache.MetaNamespaceKeyFunc, index)
	w.events = record.NewFakeRecorder(1000)
	w.dies, w.dead = -1, false
	now := func() time.Time { return w.now }
	w.ledger = ledger.New(now, func(string) {})
	w.c = New(Config{
		Client: w.client, Events: w.events, Ledger: w.ledger, Now: now, Metrics: NewMetrics(prometheus.NewRegistry()),
		Claims: corelisters.NewPersistentVolumeClaimLister(w.claims), Volumes: corelisters.NewPersistentVolumeLister(w.volumes),
		Claim: func(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
			return w.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
		},
	})
	for _, object := range w.objects() {
		w.ledger.Inherited(object)
	}
}

// patch stands in for the API server: it checks versions and policies, and kills the provisioner.
func (w *world) patch(action clienttesting.Action) (bool, runtime.Object, error) {
	patch := action.(clienttesting.PatchAction)
	w.writes++
	if w.dead || w.dies == 0 && !w.lost {
		w.dead = true
		return true, nil, errKilled
	}
	object := w.api[action.GetNamespace()+"/"+patch.GetName()]
	require.NotNil(w.t, object)
	var whole, change map[string]any
	text, err := json.Marshal(object)
	require.NoError(w.t, err)
	require.NoError(w.t, json.Unmarshal(text, &whole))
	require.NoError(w.t, json.Unmarshal(patch.GetPatch(), &change))
	meta := whole["metadata"].(map[string]any)
	if asked := change["metadata"].(map[string]any); asked["resourceVersion"] != meta["resourceVersion"] || asked["uid"] != meta["uid"] {
		return true, nil, apierrors.NewConflict(action.GetResource().GroupResource(), patch.GetName(), errors.New("changed meanwhile"))
	}
	merge(whole, change)
	text, err = json.Marshal(whole)
	require.NoError(w.t, err)
	next := object.DeepCopyObject()
	switch o := next.(type) {
	case *corev1.PersistentVolume:
		*o = corev1.PersistentVolume{}
		require.NoError(w.t, json.Unmarshal(text, o))
		w.raised(object.(*corev1.PersistentVolume), o)
	case *corev1.PersistentVolumeClaim:
		require.Equal(w.t, "status", action.GetSubresource())
		*o = corev1.PersistentVolumeClaim{}
		require.NoError(w.t, json.Unmarshal(text, o))
		maximum := maxAllocated(object.(*corev1.PersistentVolumeClaim))
		allocated := o.Status.AllocatedResources[storage]
		require.LessOrEqual(w.t, allocated.Cmp(maximum), 0, "the policy lets it fall, and rise to what is asked for")
	}
	w.store(next)
	if w.dies == 0 {
		w.dead = true
		return true, nil, errKilled
	}
	w.dies--
	return true, w.api[action.GetNamespace()+"/"+patch.GetName()].DeepCopyObject(), nil
}

// raised requires that a claim whose capacity is raised has no mark of an earlier request, with which
// kube-controller-manager would continue.
func (w *world) raised(from, to *corev1.PersistentVolume) {
	before, after := capacity(from), capacity(to)
	if after.Cmp(before) > 0 {
		claim := w.claim(to.Spec.ClaimRef.Name)
		require.Empty(w.t, state(claim))
		allocated := claim.Status.AllocatedResources[storage]
		require.Zero(w.t, allocated.Cmp(after))
	}
}

// merge implements RFC 7396.
func merge(into, change map[string]any) {
	for k, v := range change {
		inner, nested := v.(map[string]any)
		switch {
		case v == nil:
			delete(into, k)
		case nested:
			if _, there := into[k].(map[string]any); !there {
				into[k] = map[string]any{}
			}
			merge(into[k].(map[string]any), inner)
		default:
			into[k] = v
		}
	}
}

var version = 100

// store writes an object with a new resourceVersion.
func (w *world) store(object runtime.Object) {
	version++
	meta := object.(metav1.Object)
	meta.SetResourceVersion(strconv.Itoa(version))
	w.api[meta.GetNamespace()+"/"+meta.GetName()] = object.DeepCopyObject()
}

func (w *world) claim(name string) *corev1.PersistentVolumeClaim {
	return w.api["db/"+name].DeepCopyObject().(*corev1.PersistentVolumeClaim)
}

func (w *world) object(name string) *corev1.PersistentVolume {
	return w.api["/pvc-"+name].DeepCopyObject().(*corev1.PersistentVolume)
}

func (w *world) objects() (out []*corev1.PersistentVolume) {
	for _, name := range slices.Sorted(maps.Keys(w.api)) {
		if o, is := w.api[name].(*corev1.PersistentVolume); is {
			out = append(out, o.DeepCopy())
		}
	}
	return out
}

func quantity(b volume.Bytes) resource.Quantity {
	return *resource.NewQuantity(int64(b), resource.BinarySI)
}
func room(b volume.Bytes) corev1.ResourceList { return corev1.ResourceList{storage: quantity(b)} }

// bind creates a claim with its PersistentVolume and volume.
func (w *world) bind(name string, size volume.Bytes) {
	spec := w.spec
	spec.Size = size
	spec.Name = volume.Name("pvc-" + name)
	object := persistentvolume.New(pv.Description{
		Name: "pvc-" + name, Node: "n1", Hostname: "n1", Door: w.door, Spec: spec, Charged: spec.Charge(),
		Disposal: volume.Disposal{Reclaim: volume.ReclaimLazy, Wipe: volume.WipeNone}, OnNodeLoss: volume.OnNodeLossKeep,
	}, nil, corev1.PersistentVolumeReclaimDelete)
	object.UID, object.Status.Phase = types.UID("of-"+object.Name), corev1.VolumeBound
	object.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "db", Name: name, UID: types.UID(name)}
	w.store(object)
	w.store(&corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name, UID: types.UID(name), Annotations: map[string]string{pv.AnnotationStorageProvisioner: pv.Provisioner}},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: object.Name, Resources: corev1.VolumeResourceRequirements{Requests: room(size)}},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: room(size), Conditions: []corev1.PersistentVolumeClaimCondition{
			{Type: "Unused", Status: corev1.ConditionTrue}, // kube-controller-manager of 1.37 keeps it
		}},
	})
	w.make("pvc-"+name, volume.Ready, size)
}

// make creates a fully written logical volume.
func (w *world) make(name string, state volume.State, size volume.Bytes) {
	device := volume.XFSDeviceSize(size, 0)
	w.made[name] = &inventory.Volume{
		Group: "flexlvm", GroupUUID: groupUUID, Name: volume.Name(name), UUID: "uuid-" + name, State: state, Shape: w.spec.Shape(),
		Size: size, Allocated: w.spec.Shape().Takes(device, volume.DefaultExtent), AllocatedWhenFull: device, Namespace: "db", Cluster: cluster, Kind: volume.Claim,
		Created: w.now.Add(-240 * time.Hour), LastUsed: w.now.Add(-5 * time.Hour), Released: w.now.Add(-4 * time.Hour), Reclaim: volume.ReclaimLazy,
	}
	if w.spec.Layout == volume.Thin {
		w.made[name].Allocated = device
	}
}

// ask changes the request of a claim.
func (w *world) ask(name string, size volume.Bytes) {
	claim := w.claim(name)
	claim.Spec.Resources.Requests = room(size)
	w.asked[name] = max(w.asked[name], size)
	w.store(claim)
}

// free returns the room that no volume holds.
func (w *world) free() volume.Bytes {
	left := w.size
	for _, v := range w.made {
		left -= v.Allocated
	}
	return left
}

// daemon is a round of the node daemon: it evicts by its plan, and reports.
func (w *world) daemon() { w.rounds(true) }

// daemonReports is a round without evictions.
func (w *world) daemonReports() { w.rounds(false) }

func (w *world) rounds(evict bool) {
	for again := true; again; {
		pool := inventory.Pool{Name: volume.PoolOf("flexlvm", w.spec.ThinPool), UUID: groupUUID, Size: w.size, Free: w.free(), Extent: volume.DefaultExtent}
		for i := range w.spec.Devices() {
			pool.Devices = append(pool.Devices, fmt.Sprintf("/dev/sd%c", 'a'+i))
			pool.DeviceFree = append(pool.DeviceFree, w.free()/volume.Bytes(w.spec.Devices()))
		}
		if w.spec.Layout == volume.Thin {
			pool.Thin = &inventory.ThinPool{GroupUUID: groupUUID, Known: true, Metadata: 100, MetadataUsed: 1}
		}
		view := eviction.View{Now: w.now, Cluster: cluster, Pools: []inventory.Pool{pool}}
		for _, name := range slices.Sorted(maps.Keys(w.made)) {
			view.Volumes = append(view.Volumes, *w.made[name])
		}
		for _, object := range w.objects() {
			if v, err := persistentvolume.Parse(object); err == nil {
				view.PersistentVolumes = append(view.PersistentVolumes, v)
			}
		}
		policy := eviction.DefaultPolicy()
		policy.HighPercent, policy.ThinDataPercent = 100, 100
		result := eviction.Plan(view, policy)
		if !evict {
			result.Evictions = nil
		}
		again = len(result.Evictions) > 0
		for _, e := range result.Evictions {
			require.Equal(w.t, volume.Unreferenced, e.Volume.State)
			delete(w.made, string(e.Volume.Name))
			w.evicted++
		}
		w.report(result.Pools[0])
		w.charge(view)
	}
}

func (w *world) report(p eviction.PoolResult) {
	out := flexlvmv1.Pool{
		Name: string(p.Pool.Name), UUID: groupUUID, Size: quantity(p.Pool.Size), Free: quantity(p.Pool.Free), Reclaimable: quantity(p.Reclaimable),
		Promised: quantity(p.Promised), Allocatable: quantity(p.Allocatable), ExtentSize: quantity(p.Pool.Extent), Closed: p.Closed,
	}
	for _, f := range p.Pool.DeviceFree {
		out.DeviceFree = append(out.DeviceFree, quantity(f))
	}
	pools := []flexlvmv1.Pool{out}
	if p.Pool.Thin != nil {
		pools = append(pools, flexlvmv1.Pool{Name: "flexlvm", UUID: groupUUID})
	}
	report := &flexlvmv1.NodeStorage{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: flexlvmv1.NodeStorageStatus{Pools: pools}}
	w.ledger.Report(report)
	if _, at, ask := w.ledger.Unconfirmed("n1"); ask { // as the publisher does
		w.ledger.Confirm(report, at)
	}
}

// watch updates the caches from the API, in their reduced form.
func (w *world) watch() {
	for _, object := range w.objects() {
		stripped, err := controlplane.Transform(object.DeepCopy())
		require.NoError(w.t, err)
		require.NoError(w.t, w.volumes.Update(stripped))
		w.ledger.Written(stripped.(*corev1.PersistentVolume))
	}
	for _, name := range slices.Sorted(maps.Keys(w.api)) {
		claim, is := w.api[name].(*corev1.PersistentVolumeClaim)
		if !is {
			continue
		}
		stripped, err := controlplane.Transform(claim.DeepCopy())
		require.NoError(w.t, err)
		require.NoError(w.t, w.claims.Update(stripped))
		w.c.SeeClaim(stripped.(*corev1.PersistentVolumeClaim))
	}
	for _, obj := range w.volumes.List() {
		w.c.SeeVolume(obj.(*corev1.PersistentVolume))
	}
}

// serve is one pass of the controller.
func (w *world) serve() {
	w.watch()
	_, _ = w.c.serve(w.t.Context(), "n1")
	for len(w.events.Events) > 0 {
		w.told = append(w.told, <-w.events.Events)
	}
	w.check()
}

// settle runs the daemon and the controller until neither has anything to do.
func (w *world) settle() {
	for range 20 {
		before := w.writes
		w.daemon()
		w.serve()
		w.watch()
		if w.writes == before {
			return
		}
	}
	require.Fail(w.t, "it does not come to rest", "%v", w.told)
}

// check checks the invariants: no more is promised than there is, and no volume grows larger than its claim has ever
// requested.
func (w *world) check() {
	charged := volume.Bytes(0)
	for _, object := range w.objects() {
		v, err := persistentvolume.Parse(object)
		require.NoError(w.t, err)
		charged += v.Charge().In(volume.DefaultExtent)
		if asked := w.asked[v.ClaimName]; asked > 0 {
			require.LessOrEqual(w.t, v.Promised(), asked, v.PV)
		}
	}
	require.LessOrEqual(w.t, charged, w.size, "promised")
}
