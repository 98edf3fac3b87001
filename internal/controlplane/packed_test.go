package controlplane

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func boundVolume(name, node string) *corev1.PersistentVolume {
	spec := volume.Spec{Group: "flexlvm", Name: volume.Name(name), Size: volume.GiB, Layout: volume.Linear, Kind: volume.Claim, Cluster: "6e2c0b0a-92a7-4b52-a9f5-2f7b3f1f8a01"}
	out := persistentvolume.New(pv.Description{
		Name: name, Node: node, Hostname: "host-of-" + node, Spec: spec, Charged: spec.Charge(),
		Disposal: volume.Disposal{Reclaim: volume.ReclaimLazy, Wipe: volume.WipeNone}, OnNodeLoss: volume.OnNodeLossKeep,
	}, nil, corev1.PersistentVolumeReclaimDelete)
	out.UID, out.ResourceVersion = types.UID("uid-of-"+name), "17"
	out.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "shop", Name: "data-" + name, UID: types.UID("uid-of-data-" + name)}
	out.Status.Phase = corev1.VolumeBound
	return out
}

func claimFor(name, volume string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-of-" + name), ResourceVersion: "18", Annotations: map[string]string{pv.AnnotationStorageProvisioner: pv.Provisioner}},
		Spec: corev1.PersistentVolumeClaimSpec{VolumeName: volume, Resources: corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
		}},
	}
}

// A packed object is unpacked to what Transform returns for it.
func TestPackedObjectsAreTheSame(t *testing.T) {
	changed := func(change func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
		out := boundVolume("pvc-1", "node-1")
		change(out)
		return out
	}
	for _, object := range []metav1.Object{
		boundVolume("pvc-1", "node-1"), claimFor("data", "pvc-1"), claimFor("waits", ""),
		changed(func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = nil }),
		changed(func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.UID = "" }),
		changed(func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.Name = "" }),
		changed(func(v *corev1.PersistentVolume) { v.Name = "pvc-" + string(v.Spec.ClaimRef.UID) }),
		usualVolume(1), usualClaim(1),
		changed(func(v *corev1.PersistentVolume) { v.UID = "00000000-0000-0000-0000-000000000000" }),
		changed(func(v *corev1.PersistentVolume) { v.UID = "B1D0C7E4-92A7-4B52-A9F5-000000000001" }),
		changed(func(v *corev1.PersistentVolume) { v.ResourceVersion = "017" }),
		changed(func(v *corev1.PersistentVolume) { v.ResourceVersion = "0" }),
		changed(func(v *corev1.PersistentVolume) { v.ResourceVersion = "" }),
		changed(func(v *corev1.PersistentVolume) { v.Name, v.Spec.ClaimRef.UID = "pvc-", "" }),
		changed(func(v *corev1.PersistentVolume) { v.Labels = nil }),
		changed(func(v *corev1.PersistentVolume) { v.Labels[replica.LabelDataset] = "corpus" }),
		changed(func(v *corev1.PersistentVolume) { v.Spec.NodeAffinity = nil }),
		changed(func(v *corev1.PersistentVolume) {
			terms := v.Spec.NodeAffinity.Required.NodeSelectorTerms
			terms[0].MatchExpressions[0].Values = []string{"host-1", "host-2"}
		}),
		changed(func(v *corev1.PersistentVolume) {
			terms := &v.Spec.NodeAffinity.Required.NodeSelectorTerms
			*terms = append(*terms, corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"n"}}}})
		}),
		changed(func(v *corev1.PersistentVolume) { v.Spec.FlexVolume.Driver = "example.com/other" }),
	} {
		stripped, err := Transform(deepCopy(object))
		require.NoError(t, err)
		stored, err := Pack(deepCopy(object))
		require.NoError(t, err)
		again, err := Pack(stored)
		require.NoError(t, err)
		require.Same(t, stored, again, "caches may transform what they have transformed")
		require.True(t, equality.Semantic.DeepEqual(stripped, unpack(stored)), "%v", unpack(stored))
		accessor, err := meta.Accessor(stored)
		require.NoError(t, err)
		require.Equal(t, []any{object.GetName(), object.GetNamespace(), object.GetUID(), object.GetResourceVersion()},
			[]any{accessor.GetName(), accessor.GetNamespace(), accessor.GetUID(), accessor.GetResourceVersion()})
	}
}

// usualVolume and usualClaim return a PersistentVolume and its claim, with UIDs and resourceVersions like
// Kubernetes' own.
func usualVolume(i int) *corev1.PersistentVolume {
	claim := usualClaim(i)
	out := boundVolume(claim.Spec.VolumeName, "node-1")
	out.UID, out.ResourceVersion = types.UID(fmt.Sprintf("b1d0c7e4-92a7-4b52-a9f5-%012d", i)), fmt.Sprint(1000+i)
	out.Spec.ClaimRef.Name, out.Spec.ClaimRef.UID = claim.Name, claim.UID
	return out
}

func usualClaim(i int) *corev1.PersistentVolumeClaim {
	uid := fmt.Sprintf("7f3c9a52-3b0a-4c58-9f3e-%012d", i)
	out := claimFor(fmt.Sprintf("data-%d", i), "pvc-"+uid)
	out.UID, out.ResourceVersion = types.UID(uid), fmt.Sprint(2000+i)
	return out
}

// Fields that many volumes have in common are stored once.
func TestPackedObjectsShareWhatIsTheSame(t *testing.T) {
	one, err := packVolume(usualVolume(1))
	require.NoError(t, err)
	other, err := packVolume(usualVolume(2))
	require.NoError(t, err)
	require.Equal(t, one.common, other.common)
	require.Equal(t, one.rest, other.rest)
	claim, err := packClaim(usualClaim(1))
	require.NoError(t, err)
	otherClaim, err := packClaim(usualClaim(2))
	require.NoError(t, err)
	require.Equal(t, claim.rest, otherClaim.rest)
}

func deepCopy(object metav1.Object) any {
	switch o := object.(type) {
	case *corev1.PersistentVolume:
		return o.DeepCopy()
	case *corev1.PersistentVolumeClaim:
		return o.DeepCopy()
	}
	return object
}

// Iterating over the first PersistentVolume of a node does not unpack all of the node's PersistentVolumes.
func TestPackedVolumesOfANodeAreUnpackedOneByOne(t *testing.T) {
	look := func(each int) float64 {
		volumes := Packed{cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.PersistentVolume{}, 0, NodeIndex())}
		for i := range each {
			packed, err := Pack(boundVolume(fmt.Sprint("pvc-", i), "node-1"))
			require.NoError(t, err)
			require.NoError(t, volumes.SharedIndexInformer.GetIndexer().Add(packed))
		}
		return testing.AllocsPerRun(10, func() {
			found, err := volumes.OnNode("node-1")
			require.NoError(t, err)
			for object := range found {
				require.Equal(t, "node-1", object.Labels[pv.LabelNode])
				break
			}
		})
	}
	few, many := look(1), look(200)
	require.InDelta(t, few, many, 5)
}

// Handlers receive unpacked objects, and the library only those on which it may have to act.
func TestPackedInformer(t *testing.T) {
	client := fake.NewClientset(boundVolume("pvc-1", "node-1"), boundVolume("pvc-2", "node-2"), claimFor("data", "pvc-1"), claimFor("waits", ""))
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(Pack))
	volumes := Packed{factory.Core().V1().PersistentVolumes().Informer()}
	claims := Packed{factory.Core().V1().PersistentVolumeClaims().Informer()}
	require.NoError(t, volumes.AddIndexers(NodeIndex()))
	require.NoError(t, claims.ForLibrary().AddIndexers(cache.Indexers{"uid": func(obj any) ([]string, error) {
		return []string{string(obj.(*corev1.PersistentVolumeClaim).UID)}, nil
	}}))
	told := make(chan string, 100)
	tell := func(who string) cache.ResourceEventHandler { return teller(who, told) }
	for _, informer := range []Packed{volumes, claims} {
		_, err := informer.AddEventHandler(tell("all"))
		require.NoError(t, err)
		_, err = informer.ForLibrary().AddEventHandlerWithResyncPeriod(tell("library"), time.Hour)
		require.NoError(t, err)
	}
	hears := func(want ...string) {
		t.Helper()
		var got []string
		for range want {
			select {
			case one := <-told:
				got = append(got, one)
			case <-time.After(time.Minute):
				require.FailNow(t, "nothing more is told", "%v", got)
			}
		}
		require.ElementsMatch(t, want, got)
	}
	ctx := t.Context()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	hears("all add pvc-1 Bound", "all add pvc-2 Bound", "all add data", "all add waits", "library add waits")

	released := boundVolume("pvc-1", "node-1")
	released.Status.Phase = corev1.VolumeReleased
	_, err := client.CoreV1().PersistentVolumes().Update(ctx, released, metav1.UpdateOptions{})
	require.NoError(t, err)
	hears("all update pvc-1 Released", "library add pvc-1 Released")

	lister := corelisters.NewPersistentVolumeLister(volumes.GetIndexer())
	got, err := lister.Get("pvc-2")
	require.NoError(t, err)
	_, err = persistentvolume.Parse(got)
	require.NoError(t, err)
	onNode, err := volumes.GetIndexer().ByIndex(ByNode, "node-2")
	require.NoError(t, err)
	require.Len(t, onNode, 1)
	require.Equal(t, "pvc-2", onNode[0].(*corev1.PersistentVolume).Name)
	bound, err := corelisters.NewPersistentVolumeClaimLister(claims.GetIndexer()).PersistentVolumeClaims("shop").Get("data")
	require.NoError(t, err)
	require.Equal(t, "pvc-1", bound.Spec.VolumeName)
	waits, err := claims.ForLibrary().GetIndexer().ByIndex("uid", "uid-of-waits")
	require.NoError(t, err)
	require.Len(t, waits, 1)
	others, err := claims.ForLibrary().GetIndexer().ByIndex("uid", "uid-of-data")
	require.NoError(t, err)
	require.Empty(t, others)
	_, exists, err := volumes.ForLibrary().GetStore().GetByKey("pvc-1")
	require.True(t, exists && err == nil)
}

// teller returns a handler that sends a line to told for each of its calls.
func teller(who string, told chan<- string) cache.ResourceEventHandler {
	say := func(what string, obj any) {
		if gone, is := obj.(cache.DeletedFinalStateUnknown); is {
			obj = gone.Obj
		}
		switch o := obj.(type) {
		case *corev1.PersistentVolume:
			told <- fmt.Sprintf("%s %s %s %s", who, what, o.Name, o.Status.Phase)
		case *corev1.PersistentVolumeClaim:
			told <- fmt.Sprintf("%s %s %s", who, what, o.Name)
		default:
			told <- fmt.Sprintf("%s %s %T", who, what, obj)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { say("add", obj) }, UpdateFunc: func(_, obj any) { say("update", obj) }, DeleteFunc: func(obj any) { say("delete", obj) },
	}
}
