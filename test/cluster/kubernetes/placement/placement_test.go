package placement

import (
	"fmt"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"
	"sigs.k8s.io/yaml"
)

// A scheduler is the scheduler's own volume binding plugin, and a pod whose claim has no volume yet.
type scheduler struct {
	binder volumebinding.SchedulerVolumeBinder
	pod    *corev1.Pod
	claims *volumebinding.PodVolumeClaims
}

// newScheduler returns a scheduler with these capacities and a claim of that size.
func newScheduler(t testing.TB, size string, capacities ...*storagev1.CSIStorageCapacity) *scheduler {
	t.Helper()
	class, waits, checked := "flexlvm", storagev1.VolumeBindingWaitForFirstConsumer, true
	objects := []runtime.Object{
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: "flexlvm.io", VolumeBindingMode: &waits},
		&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "flexlvm.io"}, Spec: storagev1.CSIDriverSpec{StorageCapacity: &checked}},
		&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data", UID: "1", ResourceVersion: "1"},
			Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class, Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
			}},
			Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
		},
	}
	client := fake.NewClientset(objects...)
	factory := informers.NewSharedInformerFactory(client, 0)
	core, storage := factory.Core().V1(), factory.Storage().V1()
	for _, c := range capacities { // faster than through the fake client
		if err := storage.CSIStorageCapacities().Informer().GetStore().Add(c); err != nil {
			t.Fatal(err)
		}
	}
	binder, err := volumebinding.NewVolumeBinder(klog.Background(), client, feature.Features{}, core.Pods(), core.Nodes(), storage.CSINodes(),
		core.PersistentVolumeClaims(), core.PersistentVolumes(), storage.StorageClasses(),
		volumebinding.CapacityCheck{CSIDriverInformer: storage.CSIDrivers(), CSIStorageCapacityInformer: storage.CSIStorageCapacities()}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for _, informer := range []interface {
		Run(<-chan struct{})
		HasSynced() bool
	}{core.PersistentVolumeClaims().Informer(), core.PersistentVolumes().Informer(), storage.StorageClasses().Informer(), storage.CSIDrivers().Informer()} {
		go informer.Run(t.Context().Done())
		if !cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced) {
			t.Fatal("the caches do not fill")
		}
	}
	s := &scheduler{binder: binder, pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db"}}}
	s.pod.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	if s.claims, err = binder.GetPodVolumeClaims(klog.Background(), s.pod); err != nil {
		t.Fatal(err)
	}
	return s
}

// fits reports whether the pod's claim fits on a node, according to the plugin.
func (s *scheduler) fits(t testing.TB, node *corev1.Node) bool {
	t.Helper()
	_, reasons, err := s.binder.FindPodVolumes(klog.Background(), s.pod, s.claims, node)
	if err != nil {
		t.Fatal(err)
	}
	return len(reasons) == 0
}

func labelled(name string, labels map[string]string) *corev1.Node {
	all := map[string]string{corev1.LabelHostname: name}
	for k, v := range labels {
		all[k] = v
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: all}}
}

// The cluster autoscaler derives hypothetical nodes from a template or from an existing node, and
// checks with the scheduler's plugins whether pods would fit. testdata has the object that the
// provisioner publishes for a node group with the nodes host-1 and host-2, as a test of package
// provision verifies.
func TestNodesMadeFromATemplate(t *testing.T) {
	content, err := os.ReadFile("testdata/node-group.yaml")
	if err != nil {
		t.Fatal(err)
	}
	template := &storagev1.CSIStorageCapacity{}
	if err := yaml.UnmarshalStrict(content, template); err != nil {
		t.Fatal(err)
	}
	group := map[string]string{"flexlvm.io/node-group": "workers"}
	tests := map[string]struct {
		node *corev1.Node
		size string
		want bool
	}{
		"a new node of the group":          {labelled("template-node-for-workers-1", group), "100Gi", true},
		"more than it will have":           {labelled("template-node-for-workers-1", group), "2000Gi", false},
		"a node that is there":             {labelled("host-1", group), "100Gi", false},
		"a new node of another group":      {labelled("template-node-for-others-1", map[string]string{"flexlvm.io/node-group": "others"}), "100Gi", false},
		"a new node without any group":     {labelled("template-node-1", nil), "100Gi", false},
		"a node of the group, no hostname": {&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "x", Labels: group}}, "100Gi", false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := newScheduler(t, tt.size, template).fits(t, tt.node); got != tt.want {
				t.Errorf("fits: %t", got)
			}
		})
	}
}

// BenchmarkPlacement checks every node of a cluster for one claim, as the scheduler may: with one
// capacity per node, as the provisioner publishes them, and with one per tenth of the nodes, by a
// label. The time is for one processor.
func BenchmarkPlacement(b *testing.B) {
	for _, nodes := range []int{500, 1000, 2000, 5000} {
		for _, layout := range []string{"node", "bucket"} {
			b.Run(fmt.Sprintf("nodes=%d/by=%s", nodes, layout), func(b *testing.B) {
				size, all, capacities := resource.MustParse("900Gi"), []*corev1.Node{}, []*storagev1.CSIStorageCapacity{}
				add := func(name, key, value string) {
					capacities = append(capacities, &storagev1.CSIStorageCapacity{
						ObjectMeta:   metav1.ObjectMeta{Namespace: "flexlvm-system", Name: name},
						NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}, StorageClassName: "flexlvm", Capacity: &size, MaximumVolumeSize: &size,
					})
				}
				for i := range nodes {
					name, bucket := fmt.Sprintf("node-%05d", i), fmt.Sprint(i%10)
					all = append(all, labelled(name, map[string]string{"bucket": bucket}))
					switch {
					case layout == "node":
						add(name, corev1.LabelHostname, name)
					case i < 10:
						add("bucket-"+bucket, "bucket", bucket)
					}
				}
				s := newScheduler(b, "100Gi", capacities...)
				for b.Loop() {
					for _, node := range all {
						if !s.fits(b, node) {
							b.Fatal("it fits nowhere")
						}
					}
				}
			})
		}
	}
}
