package provision

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/flexlvm/flexlvm/internal/pv"
)

var (
	nodesResource   = corev1.SchemeGroupVersion.WithResource("nodes")
	claimsResource  = corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	volumesResource = corev1.SchemeGroupVersion.WithResource("persistentvolumes")
)

// A lossRig is an API of fakes, caches that see it when the test says so, and a
// clock that the test moves.
type lossRig struct {
	t       *testing.T
	client  *fake.Clientset
	factory informers.SharedInformerFactory
	metrics *Metrics
	said    []string // "reason kind name"
	calls   []string // "verb resource"
	// fault is asked before each call what goes wrong: an error, and whether the API
	// does the thing all the same.
	fault func(call int) (err error, done bool)
	now   time.Time
	loop  *nodeLoss
}

func newLossRig(t *testing.T, objects ...runtime.Object) *lossRig {
	r := &lossRig{t: t, client: fake.NewClientset(objects...), now: lossStart}
	r.client.PrependReactor("*", "*", r.react)
	r.restart()
	return r
}

// restart is a new process: it has seen nothing yet.
func (r *lossRig) restart() {
	r.metrics = NewMetrics()
	r.factory = informers.NewSharedInformerFactory(r.client, 0)
	r.loop = newNodeLoss(lossConfig{
		client: r.client, events: r, cluster: lossCluster, metrics: r.metrics, grace: lossGrace, now: func() time.Time { return r.now },
	}, r.factory)
}

func (r *lossRig) react(action clienttesting.Action) (bool, runtime.Object, error) {
	if action.GetVerb() == "watch" {
		return false, nil, nil
	}
	call := len(r.calls)
	r.calls = append(r.calls, action.GetVerb()+" "+action.GetResource().Resource)
	if err := r.precondition(action); err != nil {
		return true, nil, err
	}
	if r.fault == nil {
		return false, nil, nil
	}
	err, done := r.fault(call)
	if err != nil && done {
		_, _, _ = clienttesting.ObjectReaction(r.client.Tracker())(action)
	}
	return err != nil, nil, err
}

// precondition holds a change to the object that the caller has seen, which the
// fakes do not do. A change without one is a defect.
func (r *lossRig) precondition(action clienttesting.Action) error {
	seen := metav1.Preconditions{}
	name := ""
	switch a := action.(type) {
	case clienttesting.DeleteActionImpl:
		require.NotNil(r.t, a.DeleteOptions.Preconditions, "%s %s", a.Resource.Resource, a.Name)
		name, seen = a.Name, *a.DeleteOptions.Preconditions
	case clienttesting.PatchActionImpl:
		var patch struct{ Metadata metav1.Preconditions }
		require.NoError(r.t, json.Unmarshal(a.Patch, &patch))
		name, seen = a.Name, patch.Metadata
	default:
		return nil
	}
	require.NotNil(r.t, seen.UID)
	require.NotNil(r.t, seen.ResourceVersion)
	object, err := r.client.Tracker().Get(action.GetResource(), action.GetNamespace(), name)
	if err != nil {
		return nil // the fake says so itself
	}
	now, err := meta.Accessor(object)
	require.NoError(r.t, err)
	if *seen.UID != now.GetUID() || *seen.ResourceVersion != now.GetResourceVersion() {
		return apierrors.NewConflict(action.GetResource().GroupResource(), name, errors.New("it is another by now"))
	}
	return nil
}

// sync lets the caches see what the API has.
func (r *lossRig) sync() {
	fill := func(indexer cache.Indexer, resource schema.GroupVersionResource, kind string) {
		list, err := r.client.Tracker().List(resource, corev1.SchemeGroupVersion.WithKind(kind), "")
		require.NoError(r.t, err)
		objects, err := meta.ExtractList(list)
		require.NoError(r.t, err)
		all := make([]any, 0, len(objects))
		for _, o := range objects {
			all = append(all, o)
		}
		require.NoError(r.t, indexer.Replace(all, ""))
	}
	fill(r.factory.Core().V1().Nodes().Informer().GetIndexer(), nodesResource, "Node")
	fill(r.factory.Core().V1().PersistentVolumes().Informer().GetIndexer(), volumesResource, "PersistentVolume")
	fill(r.factory.Core().V1().PersistentVolumeClaims().Informer().GetIndexer(), claimsResource, "PersistentVolumeClaim")
}

// round lets kube-controller-manager do its part, the caches follow, and time pass.
func (r *lossRig) round(after time.Duration) error {
	r.release()
	r.sync()
	r.now = r.now.Add(after)
	return r.loop.round(context.Background())
}

// release calls volumes Released whose claim is gone.
func (r *lossRig) release() {
	for _, v := range r.volumes() {
		_, err := r.client.Tracker().Get(claimsResource, v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name)
		if apierrors.IsNotFound(err) && v.Status.Phase == corev1.VolumeBound {
			v.Status.Phase = corev1.VolumeReleased
			v.ResourceVersion += "1"
			require.NoError(r.t, r.client.Tracker().Update(volumesResource, &v, ""))
		}
	}
}

func (r *lossRig) volumes() []corev1.PersistentVolume {
	list, err := r.client.Tracker().List(volumesResource, corev1.SchemeGroupVersion.WithKind("PersistentVolume"), "")
	require.NoError(r.t, err)
	return list.(*corev1.PersistentVolumeList).Items
}

// left lists what the API still has: volumes with their finalizers, and claims.
func (r *lossRig) left() []string {
	var out []string
	for _, v := range r.volumes() {
		text := fmt.Sprintf("%s %s", v.Name, v.Status.Phase)
		if !slices.Contains(v.Finalizers, pv.Finalizer) {
			text += " let go"
		}
		out = append(out, text)
	}
	list, err := r.client.Tracker().List(claimsResource, corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"), "")
	require.NoError(r.t, err)
	for _, c := range list.(*corev1.PersistentVolumeClaimList).Items {
		out = append(out, c.Name)
	}
	return out
}

func (r *lossRig) metric(name string) float64 {
	families, err := r.metrics.Registry.Gather()
	require.NoError(r.t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	r.t.Fatalf("no metric %s", name)
	return 0
}

// Event makes the rig the recorder.
func (r *lossRig) Event(object runtime.Object, _, reason, _ string) {
	accessor, err := meta.Accessor(object)
	require.NoError(r.t, err)
	kind := map[bool]string{true: "claim"}[accessor.GetNamespace() != ""]
	switch object.(type) {
	case *corev1.PersistentVolume:
		kind = "volume"
	case *corev1.Pod:
		kind = "pod"
	}
	r.said = append(r.said, fmt.Sprintf("%s %s %s", reason, kind, accessor.GetName()))
}

func (r *lossRig) Eventf(object runtime.Object, kind, reason, format string, args ...any) {
	r.Event(object, kind, reason, fmt.Sprintf(format, args...))
}

func (r *lossRig) AnnotatedEventf(object runtime.Object, _ map[string]string, kind, reason, format string, args ...any) {
	r.Eventf(object, kind, reason, format, args...)
}

func lossNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u", Labels: map[string]string{corev1.LabelHostname: "host-of-" + name}}}
}

func usedBy(claim string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "uses-" + claim},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}}},
	}
}

// lossWorld has a node that is there with volume "here", and a volume "a" on one
// that is gone, with their claims and a pod that uses each.
func lossWorld(t *testing.T, change ...func(*corev1.PersistentVolume)) *lossRig {
	a, here := lossVolume("a", "node-1", change...), lossVolume("here", "node-2")
	objects := []runtime.Object{lossNode("node-2"), lossNode("node-9"), a, here, lossClaim(here), usedBy("claim-a"), usedBy("claim-here")}
	if a.Status.Phase == corev1.VolumeBound {
		objects = append(objects, lossClaim(a))
	}
	return newLossRig(t, objects...)
}

var hereIsLeft = []string{"here Bound", "claim-here"}

func TestNodeLossReleases(t *testing.T) {
	r := lossWorld(t)
	require.NoError(t, r.round(0))
	require.NoError(t, r.round(lossGrace-time.Second))
	require.Empty(t, r.calls, "the caches are enough while there is nothing to do")
	require.Zero(t, r.metric("flexlvm_provisioner_lost_nodes"))

	require.NoError(t, r.round(time.Second))
	require.Equal(t, []string{"list nodes", "list nodes", "delete persistentvolumeclaims", "list pods"}, r.calls)
	require.Equal(t, []string{"a Bound", "here Bound", "claim-here"}, r.left())
	require.Equal(t, []string{"ClaimReleased volume a", "ClaimReleased claim claim-a", "ClaimReleased pod uses-claim-a"}, r.said)
	require.Equal(t, 1.0, r.metric("flexlvm_provisioner_lost_nodes"))
	require.Equal(t, 1.0, r.metric("flexlvm_provisioner_node_loss_released_claims_total"))

	r.calls, r.said = nil, nil
	require.NoError(t, r.round(time.Second))
	require.Equal(t, []string{"list nodes", "list nodes", "patch persistentvolumes", "delete persistentvolumes"}, r.calls)
	require.Equal(t, hereIsLeft, r.left())
	require.Equal(t, []string{"VolumeGivenUp volume a"}, r.said)

	r.calls = nil
	require.NoError(t, r.round(time.Hour))
	require.Empty(t, r.calls)
	require.Zero(t, r.metric("flexlvm_provisioner_lost_nodes"))
}

func TestNodeLossKeeps(t *testing.T) {
	r := lossWorld(t, keep)
	require.NoError(t, r.round(0))
	for range 120 { // two hours
		require.NoError(t, r.round(time.Minute))
	}
	require.Equal(t, []string{"a Bound", "here Bound", "claim-a", "claim-here"}, r.left())
	once := []string{"NodeLost volume a", "NodeLost claim claim-a"}
	require.Equal(t, append(once, once...), r.said, "once an hour")
	require.Equal(t, []string{"list nodes", "list nodes"}, r.calls)

	// Its owner gives it up.
	require.NoError(t, r.client.Tracker().Delete(claimsResource, "shop", "claim-a"))
	require.NoError(t, r.round(0))
	require.Equal(t, hereIsLeft, r.left())
}

func TestNodeLossRetains(t *testing.T) {
	r := lossWorld(t, retain)
	require.NoError(t, r.round(0))
	require.NoError(t, r.round(lossGrace))
	require.NoError(t, r.round(lossGrace))
	require.Equal(t, []string{"a Released", "here Bound", "claim-here"}, r.left())
}

func TestNodeLossTakesTheFinalizerOffWhatIsDeleted(t *testing.T) {
	r := lossWorld(t, phase("Released"), retain, deleted)
	require.NoError(t, r.round(0))
	require.NoError(t, r.round(lossGrace))
	require.Equal(t, []string{"list nodes", "list nodes", "patch persistentvolumes"}, r.calls)
	require.Equal(t, []string{"a Released let go", "here Bound", "claim-here"}, r.left(), "the API server removes it once the others have let go")
}

func TestNodeLossGoesByTheAPIServerNotByTheCache(t *testing.T) {
	back := func(r *lossRig) { require.NoError(r.t, r.client.Tracker().Add(lossNode("node-1"))) }
	tests := map[string]struct {
		change func(*lossRig)
		calls  []string
		err    string
	}{
		"the node is back and the cache has not seen it": {change: back, calls: []string{"list nodes"}},
		"the node is back before the last question": {calls: []string{"list nodes", "list nodes"}, change: func(r *lossRig) {
			r.fault = func(call int) (error, bool) {
				if call == 1 {
					back(r)
				}
				return nil, false
			}
		}},
		"the API server has lost its memory": {
			calls: []string{"list nodes"}, err: "nothing is done about lost nodes: list nodes: the API server knows no node at all",
			change: func(r *lossRig) {
				require.NoError(r.t, r.client.Tracker().Delete(nodesResource, "", "node-2"))
				require.NoError(r.t, r.client.Tracker().Delete(nodesResource, "", "node-9"))
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := lossWorld(t)
			require.NoError(t, r.round(0))
			r.now = r.now.Add(lossGrace)
			test.change(r)
			if err := r.loop.round(t.Context()); test.err != "" {
				require.EqualError(t, err, test.err)
			} else {
				require.NoError(t, err)
			}
			require.Equal(t, test.calls, r.calls)
			require.Empty(t, r.said)
		})
	}
}

func TestNodeLossStartsAgainAfterARestart(t *testing.T) {
	r := lossWorld(t)
	require.NoError(t, r.round(0))
	r.now = r.now.Add(10 * lossGrace)
	r.restart()
	require.NoError(t, r.round(0))
	require.NoError(t, r.round(lossGrace-time.Second))
	require.Empty(t, r.calls)
}

func TestNodeLossDoubts(t *testing.T) {
	b := lossVolume("b", "node-3")
	r := lossWorld(t)
	require.NoError(t, r.client.Tracker().Add(b))
	require.NoError(t, r.client.Tracker().Add(lossClaim(b)))
	require.NoError(t, r.round(0))
	require.NoError(t, r.round(lossGrace))
	require.NoError(t, r.round(time.Minute))
	require.Len(t, r.left(), 6)
	require.Equal(t, []string{
		"NodeLossInDoubt volume a", "NodeLossInDoubt claim claim-a", "NodeLossInDoubt volume b", "NodeLossInDoubt claim claim-b",
	}, r.said)
	require.Equal(t, 1.0, r.metric("flexlvm_provisioner_node_loss_in_doubt"))

	require.NoError(t, r.client.Tracker().Add(lossNode("node-3")))
	require.NoError(t, r.round(time.Minute))
	require.Zero(t, r.metric("flexlvm_provisioner_node_loss_in_doubt"))
	require.Len(t, r.left(), 6)
	require.NoError(t, r.round(lossGrace))
	require.NoError(t, r.round(time.Minute))
	require.Equal(t, []string{"b Bound", "here Bound", "claim-b", "claim-here"}, r.left())
}

// A claim or a volume that is another than the one that was judged stays.
func TestNodeLossHoldsToWhatItHasSeen(t *testing.T) {
	r := lossWorld(t)
	require.NoError(t, r.round(0))
	r.now = r.now.Add(lossGrace)
	anew := lossClaim(lossVolume("a", "node-1"))
	anew.UID = "made-anew"
	require.NoError(t, r.client.Tracker().Update(claimsResource, anew, "shop"))
	require.ErrorContains(t, r.loop.round(t.Context()), `delete claim shop/claim-a of lost node "node-1"`)
	require.Len(t, r.left(), 4)
	require.Empty(t, r.said)
	require.NoError(t, r.round(0), "the volume is not bound to this claim")
	require.Len(t, r.left(), 4)
}

// Whatever call fails, and whether or not the API has done what it was asked for,
// nothing is lost but time, and what is there stays there. A failure is the end of
// a process too: after it another one begins.
func TestNodeLossConvergesFromEveryFault(t *testing.T) {
	for _, kind := range []struct {
		name             string
		done, restarting bool
	}{{"refused", false, false}, {"done and not answered", true, false}, {"killed before", false, true}, {"killed after", true, true}} {
		for at := range 8 { // the calls of TestNodeLossReleases
			t.Run(fmt.Sprintf("%s at call %d", kind.name, at), func(t *testing.T) {
				r := lossWorld(t)
				broken := false
				r.fault = func(call int) (error, bool) {
					if broken = broken || call == at; call != at {
						return nil, false
					}
					return apierrors.NewServiceUnavailable("away"), kind.done
				}
				require.NoError(t, r.round(0))
				for range 8 {
					before := broken
					err := r.round(lossGrace)
					if broken == before {
						require.NoError(t, err)
					} else if kind.restarting {
						r.restart()
					}
				}
				require.True(t, broken)
				require.Equal(t, hereIsLeft, r.left())
			})
		}
	}
}

func TestLean(t *testing.T) {
	node := lossNode("node-1")
	node.Annotations = map[string]string{"much": "text"}
	node.Status.Images = []corev1.ContainerImage{{Names: []string{"large"}}}
	got, err := lean(node)
	require.NoError(t, err)
	require.Equal(t, lossNode("node-1"), got)
	last := cache.DeletedFinalStateUnknown{Key: "node-1"}
	got, err = lean(last)
	require.NoError(t, err)
	require.Equal(t, last, got)
}

func TestUsesClaim(t *testing.T) {
	require.True(t, usesClaim(usedBy("data"), "data"))
	require.False(t, usesClaim(usedBy("data"), "other"))
	ephemeral := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.PodSpec{Volumes: []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}},
	}
	require.True(t, usesClaim(ephemeral, "web-scratch"))
	require.False(t, usesClaim(ephemeral, "scratch"))
}
