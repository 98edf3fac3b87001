package nodeloss

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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

// A rig is a fake API server, caches that follow it only in sync, and a clock that the test moves.
type rig struct {
	t       *testing.T
	client  *fake.Clientset
	factory informers.SharedInformerFactory
	metrics *prometheus.Registry
	said    []string // events, as "reason kind name"
	calls   []string // API calls, as "verb resource"
	looked  int      // number of volumes read from the cache
	// fault is called before each API call. It returns an error, and whether the API server carries out the
	// call nevertheless.
	fault func(call int) (err error, done bool)
	now   time.Time
	loop  *Controller
}

func newRig(t *testing.T, objects ...runtime.Object) *rig {
	r := &rig{t: t, client: fake.NewClientset(objects...), now: lossStart}
	r.client.PrependReactor("*", "*", r.react)
	r.restart()
	return r
}

// restart starts a new controller with empty caches, as after a restart of the process.
func (r *rig) restart() {
	r.metrics = prometheus.NewRegistry()
	r.factory = informers.NewSharedInformerFactory(r.client, 0)
	r.loop = New(Config{
		Client: r.client, ListNodes: r.listNodes, EachPod: r.eachPod, Events: r, Cluster: lossCluster, Metrics: NewMetrics(r.metrics), Grace: lossGrace, Now: func() time.Time { return r.now },
	}, r.seen())
}

func (r *rig) seen() Seen {
	core := r.factory.Core().V1()
	volumes := core.PersistentVolumes().Informer().GetIndexer()
	return Seen{
		Nodes: core.Nodes().Lister(), Claims: core.PersistentVolumeClaims().Lister(),
		Bearing: func() (out []string) {
			for _, v := range volumes.List() {
				if node := v.(*corev1.PersistentVolume).Labels[pv.LabelNode]; node != "" && !slices.Contains(out, node) {
					out = append(out, node)
				}
			}
			return out
		},
		Volumes: func(label string) (iter.Seq[*corev1.PersistentVolume], error) {
			return func(yield func(*corev1.PersistentVolume) bool) {
				for _, v := range volumes.List() {
					if v := v.(*corev1.PersistentVolume); v.Labels[pv.LabelNode] == label {
						if r.looked++; !yield(v) {
							return
						}
					}
				}
			}, nil
		},
	}
}

func (r *rig) react(action clienttesting.Action) (bool, runtime.Object, error) {
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

// precondition checks the preconditions of deletions and patches, which the fakes ignore. A change without
// preconditions fails the test.
func (r *rig) precondition(action clienttesting.Action) error {
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
		return nil // the fake returns this error itself
	}
	now, err := meta.Accessor(object)
	require.NoError(r.t, err)
	if *seen.UID != now.GetUID() || *seen.ResourceVersion != now.GetResourceVersion() {
		return apierrors.NewConflict(action.GetResource().GroupResource(), name, errors.New("it is another by now"))
	}
	return nil
}

// sync fills the caches with the objects of the API server.
func (r *rig) sync() {
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

// round does kube-controller-manager's part, fills the caches, moves the clock, and runs a round.
func (r *rig) round(after time.Duration) error {
	r.release()
	r.sync()
	r.now = r.now.Add(after)
	return r.again()
}

// again runs a round of the controller.
func (r *rig) again() error {
	_, err := r.loop.round(context.Background())
	return err
}

// listNodes lists the metadata of nodes, as the API server does.
func (r *rig) listNodes(ctx context.Context, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	nodes, err := r.client.CoreV1().Nodes().List(ctx, options)
	if err != nil {
		return nil, err
	}
	out := &metav1.PartialObjectMetadataList{}
	for i := range nodes.Items {
		out.Items = append(out.Items, metav1.PartialObjectMetadata{ObjectMeta: nodes.Items[i].ObjectMeta})
	}
	return out, nil
}

// eachPod stands in for the paged list of pods of the API server.
func (r *rig) eachPod(ctx context.Context, namespace string, each func(*corev1.Pod)) error {
	pods, err := r.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range pods.Items {
		each(&pods.Items[i])
	}
	return nil
}

// release sets volumes whose claim is gone to Released, as kube-controller-manager does.
func (r *rig) release() {
	for _, v := range r.volumes() {
		_, err := r.client.Tracker().Get(claimsResource, v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name)
		if apierrors.IsNotFound(err) && v.Status.Phase == corev1.VolumeBound {
			v.Status.Phase = corev1.VolumeReleased
			v.ResourceVersion += "1"
			require.NoError(r.t, r.client.Tracker().Update(volumesResource, &v, ""))
		}
	}
}

func (r *rig) volumes() []corev1.PersistentVolume {
	list, err := r.client.Tracker().List(volumesResource, corev1.SchemeGroupVersion.WithKind("PersistentVolume"), "")
	require.NoError(r.t, err)
	return list.(*corev1.PersistentVolumeList).Items
}

// left returns the remaining volumes, marked if they lack flexlvm's finalizer, and claims.
func (r *rig) left() []string {
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

func (r *rig) metric(name string) float64 {
	families, err := r.metrics.Gather()
	require.NoError(r.t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	r.t.Fatalf("no metric %s", name)
	return 0
}

// Event and the next two methods make the rig an EventRecorder.
func (r *rig) Event(object runtime.Object, _, reason, _ string) {
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

func (r *rig) Eventf(object runtime.Object, kind, reason, format string, args ...any) {
	r.Event(object, kind, reason, fmt.Sprintf(format, args...))
}

func (r *rig) AnnotatedEventf(object runtime.Object, _ map[string]string, kind, reason, format string, args ...any) {
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

// lossWorld returns a rig with volume "here" on an existing node, and volume "a" on a node that is gone, with
// their claims and a pod that uses each.
func lossWorld(t *testing.T, change ...func(*corev1.PersistentVolume)) *rig {
	a, here := lossVolume("a", "node-1", change...), lossVolume("here", "node-2")
	objects := []runtime.Object{lossNode("node-2"), lossNode("node-9"), a, here, lossClaim(here), usedBy("claim-a"), usedBy("claim-here")}
	if a.Status.Phase == corev1.VolumeBound {
		objects = append(objects, lossClaim(a))
	}
	return newRig(t, objects...)
}
