package staticvolume

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/rest"
	clientgotesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/kube"
)

func ptr[T any](v T) *T { return &v }

// A world is a node with its report, and a controller whose rounds the test runs.
type world struct {
	t       *testing.T
	client  *fake.Clientset
	c       *Controller
	report  *flexlvmv1.NodeStorage
	classes cache.Indexer
	nodes   cache.Indexer
	events  *record.FakeRecorder
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, classes: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}), nodes: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}), events: record.NewFakeRecorder(100)}
	w.client = fake.NewClientset()
	w.node("n1", map[string]string{corev1.LabelHostname: "host-1", "zone": "a"})
	api, err := kube.NewClient(&rest.Config{Host: "http://127.0.0.1:1"}) // the test fills its watches
	require.NoError(t, err)
	w.c, err = New(Config{
		Client: w.client, API: api, Events: w.events, Classes: storagelisters.NewStorageClassLister(w.classes), Nodes: corelisters.NewNodeLister(w.nodes), Now: time.Now,
		NodeStorages: cache.NewSharedIndexInformer(&cache.ListWatch{}, &flexlvmv1.NodeStorage{}, 0, cache.Indexers{}),
	})
	require.NoError(t, err)
	require.NoError(t, w.c.discoveries.GetStore().Add(&flexlvmv1.VolumeDiscovery{
		ObjectMeta: metav1.ObjectMeta{Name: flexlvmv1.VolumeDiscoveryName, UID: "d-1", Generation: 3},
		Spec: flexlvmv1.VolumeDiscoverySpec{Classes: []flexlvmv1.DiscoveryClass{{
			StorageClassName: "fast", Directory: "/mnt/fast", FSType: "xfs", CleanDevice: flexlvmv1.CleanKeep,
			Labels: flexlvmv1.VolumeLabels{"tier": "fast", "flexlvm.io/node": "another"}, NodeLabels: []string{"zone", "none"},
		}}},
	}))
	w.class(func(*storagev1.StorageClass) {})
	w.report = &flexlvmv1.NodeStorage{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: flexlvmv1.NodeStorageStatus{ObservedTime: metav1.Now(), DiscoveredFrom: "d-1/3", Discovered: []flexlvmv1.Discovered{{
		Path: "/mnt/fast/a", StorageClassName: "fast", Kind: "Filesystem", Size: resource.MustParse("10Gi"), Disk: "fs-1", State: flexlvmv1.DiscoveredReady, Offer: 1,
	}}}}
	require.NoError(t, w.c.NodeStorages.GetStore().Add(w.report))
	return w
}

func (w *world) class(change func(*storagev1.StorageClass)) {
	c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: noProvisioner, VolumeBindingMode: ptr(storagev1.VolumeBindingWaitForFirstConsumer)}
	change(c)
	require.NoError(w.t, w.classes.Add(c))
}

// node adds a node to the API server and to the cache.
func (w *world) node(name string, labels map[string]string) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	require.NoError(w.t, w.client.Tracker().Add(node))
	require.NoError(w.t, w.nodes.Add(node))
}

func (w *world) selector(s *metav1.LabelSelector) { w.c.discovery().Spec.Classes[0].NodeSelector = s }

func (w *world) found() *flexlvmv1.Discovered { return &w.report.Status.Discovered[0] }

// round runs a round, then updates the controller's cache from the API.
func (w *world) round() []corev1.PersistentVolume {
	w.t.Helper()
	require.NoError(w.t, w.c.reconcile(w.t.Context()))
	list, err := w.client.CoreV1().PersistentVolumes().List(w.t.Context(), metav1.ListOptions{LabelSelector: flexlvmv1.LabelDiscoveredOn})
	require.NoError(w.t, err)
	var shown []any
	for i := range list.Items {
		shown = append(shown, &list.Items[i])
	}
	require.NoError(w.t, w.c.volumes.GetStore().Replace(shown, ""))
	return list.Items
}

func (w *world) said() (out string) {
	for {
		select {
		case text := <-w.events.Events:
			out += text + "\n"
		default:
			return out
		}
	}
}

func TestAPersistentVolumeIsMade(t *testing.T) {
	w := newWorld(t)
	all := w.round()
	require.Len(t, all, 1)
	v := all[0]
	require.Equal(t, Name("n1", "/mnt/fast/a"), v.Name)
	require.Equal(t, map[string]string{"tier": "fast", "zone": "a", flexlvmv1.LabelDiscoveredOn: "n1"}, v.Labels)
	require.Equal(t, map[string]string{"pv.kubernetes.io/provisioned-by": flexlvmv1.Discoverer, flexlvmv1.AnnotationDisk: "fs-1", flexlvmv1.AnnotationOffer: "1"}, v.Annotations)
	require.Equal(t, corev1.PersistentVolumeReclaimDelete, v.Spec.PersistentVolumeReclaimPolicy)
	require.Equal(t, &corev1.LocalVolumeSource{Path: "/mnt/fast/a", FSType: ptr("xfs")}, v.Spec.Local)
	require.Equal(t, "10Gi", v.Spec.Capacity.Storage().String())
	require.Equal(t, []string{"host-1"}, v.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values)
	require.Contains(t, w.said(), "Discovered created for /mnt/fast/a (fs-1) on node n1")
	require.Len(t, w.round(), 1, "once")

	w = newWorld(t)
	w.found().Aliases = "naa.1"
	require.Equal(t, "naa.1", w.round()[0].Annotations[flexlvmv1.AnnotationDiskAliases])
}

// A filesystem whose PersistentVolume was deleted gets a second one only after its node has offered it
// again, because the current report may be older than the deletion.
func TestAnOfferIsTakenOnce(t *testing.T) {
	w := newWorld(t)
	require.Len(t, w.round(), 1)
	require.NoError(t, w.client.CoreV1().PersistentVolumes().Delete(t.Context(), Name("n1", "/mnt/fast/a"), metav1.DeleteOptions{}))
	require.Empty(t, w.round())
	require.Empty(t, w.round())
	w.found().Offer = 2
	require.Len(t, w.round(), 1)
	require.NoError(t, w.client.CoreV1().PersistentVolumes().Delete(t.Context(), Name("n1", "/mnt/fast/a"), metav1.DeleteOptions{}))
	require.Empty(t, w.round())
	w.found().Disk, w.found().Offer = "fs-2", 1
	require.Len(t, w.round(), 1, "another disk has come in its place")
}

// A disk gets one PersistentVolume, on however many nodes and paths it is found.
func TestADiskIsTakenOnce(t *testing.T) {
	for name, c := range map[string]struct{ aliases, second, secondAliases string }{
		"the same":               {"", "fs-1", ""},
		"a part":                 {"", "fs-1:/a", ""},
		"the disk that it is on": {"naa.1", "naa.1", ""},
		"a disk that it is on":   {"", "naa.1", "fs-1"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.node("n2", map[string]string{corev1.LabelHostname: "host-2"})
			w.found().Aliases = c.aliases
			there := w.report.DeepCopy()
			there.Name, there.Status.Discovered[0].Disk, there.Status.Discovered[0].Aliases = "n2", c.second, c.secondAliases
			require.NoError(t, w.c.NodeStorages.GetStore().Add(there))
			again := *w.found()
			again.Path = "/mnt/fast/b"
			w.report.Status.Discovered = append(w.report.Status.Discovered, again)
			require.Len(t, w.round(), 1, "in one round")
			require.Contains(t, w.said(), "DiskTaken")
			require.Len(t, w.round(), 1, "in the next")
		})
	}
}

// Loop devices of files with the same path are one disk on one node, and two on two nodes.
func TestLoopDevicesOfTwoNodes(t *testing.T) {
	const loop = "loop-/srv/disk.img"
	for node, want := range map[string]int{"n1": 1, "n2": 2} {
		w := newWorld(t)
		w.node("n2", map[string]string{corev1.LabelHostname: "host-2"})
		w.found().Disk = loop
		second := w.report.DeepCopy()
		second.Name, second.Status.Discovered[0].Disk, second.Status.Discovered[0].Path = node, loop, "/mnt/fast/b"
		if node == w.report.Name {
			w.report.Status.Discovered = append(w.report.Status.Discovered, second.Status.Discovered[0])
		} else {
			require.NoError(t, w.c.NodeStorages.GetStore().Add(second))
		}
		require.Len(t, w.round(), want, node)
	}
}

func TestMountOptionsAreThoseOfTheClass(t *testing.T) {
	w := newWorld(t)
	w.class(func(c *storagev1.StorageClass) { c.MountOptions = []string{"rw", "noatime", "noexec"} })
	require.Equal(t, []string{"noatime", "noexec"}, w.round()[0].Spec.MountOptions)
}

func TestKeepIsRetain(t *testing.T) {
	w := newWorld(t)
	w.found().Kind = "Device"
	require.Equal(t, corev1.PersistentVolumeReclaimRetain, w.round()[0].Spec.PersistentVolumeReclaimPolicy)
	// A value that only a later version knows.
	for _, change := range []func(c *flexlvmv1.DiscoveryClass){
		func(c *flexlvmv1.DiscoveryClass) { c.CleanFilesystem = "Archive" },
		func(c *flexlvmv1.DiscoveryClass) { c.CleanDevice = "Shred" },
	} {
		w = newWorld(t)
		w.found().Kind = "Device"
		w.c.discovery().Spec.Classes[0].CleanDevice = ""
		require.Equal(t, corev1.PersistentVolumeReclaimDelete, w.round()[0].Spec.PersistentVolumeReclaimPolicy)
		w = newWorld(t)
		w.found().Kind = "Device"
		w.c.discovery().Spec.Classes[0].CleanDevice = ""
		change(&w.c.discovery().Spec.Classes[0])
		require.Equal(t, corev1.PersistentVolumeReclaimRetain, w.round()[0].Spec.PersistentVolumeReclaimPolicy)
	}
	w = newWorld(t)
	w.class(func(c *storagev1.StorageClass) { c.ReclaimPolicy = ptr(corev1.PersistentVolumeReclaimRetain) })
	require.Equal(t, corev1.PersistentVolumeReclaimRetain, w.round()[0].Spec.PersistentVolumeReclaimPolicy)
}

func TestNothingIsMade(t *testing.T) {
	other := func(hostname, path string) func(w *world) {
		return func(w *world) {
			v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "local-pv-1"}, Spec: corev1.PersistentVolumeSpec{
				PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}},
				NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{hostname}}},
				}}}},
			}}
			_, err := w.client.CoreV1().PersistentVolumes().Create(w.t.Context(), v, metav1.CreateOptions{})
			require.NoError(w.t, err)
		}
	}
	hostPath := func(path string) func(w *world) {
		return func(w *world) {
			v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "by-hand"}}
			v.Spec.HostPath = &corev1.HostPathVolumeSource{Path: path}
			_, err := w.client.CoreV1().PersistentVolumes().Create(w.t.Context(), v, metav1.CreateOptions{})
			require.NoError(w.t, err)
		}
	}
	for name, c := range map[string]struct {
		change  func(w *world)
		says    string
		created int
	}{
		"in another directory":          {func(w *world) { w.found().Path = "/etc/passwd" }, "", 0},
		"of an earlier VolumeDiscovery": {func(w *world) { w.report.Status.DiscoveredFrom = "d-1/2" }, "", 0},
		"of a silent node": {func(w *world) {
			w.report.Status.ObservedTime = metav1.NewTime(time.Now().Add(-time.Hour))
		}, "NodeSilent node n1 last reported at", 0},
		"of a node whose clock is ahead": {func(w *world) {
			w.report.Status.ObservedTime = metav1.NewTime(time.Now().Add(time.Hour))
		}, "NodeSilent node n1 last reported at", 0},
		"of a node that the class does not select": {func(w *world) {
			w.selector(&metav1.LabelSelector{MatchLabels: map[string]string{"zone": "b"}})
		}, "", 0},
		"of a node that the class selects": {func(w *world) {
			w.selector(&metav1.LabelSelector{MatchLabels: map[string]string{"zone": "a"}})
		}, "Discovered", 1},
		"with a selector that is none": {func(w *world) {
			w.selector(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "zone", Operator: "Near"}}})
		}, "ClassRefused class fast: nodeSelector:", 0},
		"below an entry":      {func(w *world) { w.found().Path = "/mnt/fast/a/b" }, "", 0},
		"of another class":    {func(w *world) { w.found().StorageClassName = "slow" }, "", 0},
		"refused by the node": {func(w *world) { w.found().State = flexlvmv1.DiscoveredRefused }, "", 0},
		"without a discovery": {func(w *world) {
			require.NoError(w.t, w.c.discoveries.GetStore().Replace(nil, ""))
		}, "", 0},
		"bound at once": {func(w *world) {
			w.class(func(c *storagev1.StorageClass) { c.VolumeBindingMode = ptr(storagev1.VolumeBindingImmediate) })
		}, "StorageClassRefused StorageClass fast has no volumeBindingMode: WaitForFirstConsumer", 0},
		"of a provisioner": {func(w *world) { w.class(func(c *storagev1.StorageClass) { c.Provisioner = "flexlvm.io" }) }, `has the provisioner "flexlvm.io"`, 0},
		"with mount options of a file system": {func(w *world) {
			w.class(func(c *storagev1.StorageClass) { c.MountOptions = []string{"noatime", "discard"} })
		}, `StorageClassRefused StorageClass fast: mountOptions "discard": is not a mount option that a volume may have`, 0},
		"of a node without a hostname": {func(w *world) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
			require.NoError(w.t, w.nodes.Update(node))
		}, "PersistentVolumeRefused /mnt/fast/a of node n1 gets no PersistentVolume: node n1 has no label kubernetes.io/hostname", 0},
		"that the API server refuses": {func(w *world) {
			w.client.PrependReactor("create", "persistentvolumes", func(clientgotesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewInvalid(schema.GroupKind{Kind: "PersistentVolume"}, "static-1", field.ErrorList{field.Invalid(field.NewPath("metadata", "labels"), "a b", "is no label")})
			})
		}, `PersistentVolumeRefused /mnt/fast/a of node n1 gets no PersistentVolume: PersistentVolume "static-1" is invalid: metadata.labels: Invalid value: "a b": is no label`, 0},
		"another system's":         {other("host-1", "/mnt/fast/a"), "PathTaken /mnt/fast/a of node n1 gets no PersistentVolume: /mnt/fast/a has PersistentVolume local-pv-1", 0},
		"another system's, here":   {other("host-1", "/mnt/fast/a/"), "PathTaken", 0},
		"another system's, above":  {other("host-1", "/mnt/fast"), "PathTaken", 0},
		"another system's, below":  {other("host-1", "/mnt/fast/a/b"), "PathTaken", 0},
		"another system's, beside": {other("host-1", "/mnt/fast/ab"), "Discovered", 1},
		"a hostPath":               {hostPath("/mnt/fast/a"), "PathTaken /mnt/fast/a of node n1 gets no PersistentVolume: /mnt/fast/a has PersistentVolume by-hand", 0},
		"a hostPath above":         {hostPath("/mnt"), "PathTaken", 0},
		"a hostPath beside":        {hostPath("/mnt/slow"), "Discovered", 1},
		"another node's":           {other("host-2", "/mnt/fast/a"), "Discovered", 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c.change(w)
			require.Len(t, w.round(), c.created)
			said := w.said()
			require.Contains(t, said, c.says)
			if c.says == "" {
				require.Empty(t, said)
			}
			w.round()
			if c.created == 0 {
				require.Empty(t, w.said(), "told once")
			}
		})
	}
}

// After cleaning, a PersistentVolume is deleted only if it is the one that was cleaned, is released
// from the same claim and has the reclaim policy Delete.
func TestACleanPersistentVolumeIsDeleted(t *testing.T) {
	for name, c := range map[string]struct {
		change func(v *corev1.PersistentVolume)
		uid    string
		left   int
	}{
		"released":               {func(*corev1.PersistentVolume) {}, "pv-1", 0},
		"of another claim since": {func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.UID = "claim-2" }, "pv-1", 1},
		"another":                {func(*corev1.PersistentVolume) {}, "pv-2", 1},
		"bound":                  {func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeBound }, "pv-1", 1},
		"retained": {func(v *corev1.PersistentVolume) {
			v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		}, "pv-1", 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v := w.round()[0]
			v.UID, v.Status.Phase = types.UID("pv-1"), corev1.VolumeReleased
			v.Spec.ClaimRef = &corev1.ObjectReference{UID: "claim-1"}
			c.change(&v)
			_, err := w.client.CoreV1().PersistentVolumes().Update(context.Background(), &v, metav1.UpdateOptions{})
			require.NoError(t, err)
			w.found().State, w.found().PersistentVolumeUID = flexlvmv1.DiscoveredCleaned, c.uid
			w.found().ClaimUID = "claim-1"
			w.round() // fills the cache
			require.Len(t, w.round(), c.left, fmt.Sprint(w.client.Actions()))
		})
	}
}
