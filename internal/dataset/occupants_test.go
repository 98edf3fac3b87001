package dataset

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/replica"
)

// crowded is a node with an idle replica of team/w, and without room for a replica of ns/v.
type crowded struct {
	*rig
	starving *Observed
	nodes    []*corev1.Node
	owner    *flexlvmv1.VolumeManager
	claim    *corev1.PersistentVolumeClaim
	volume   *corev1.PersistentVolume
	free     string
	freeOn   map[string]string // overrides free for a node
	most     string            // the maximumVolumeSize, if it is published
	others   []client.Object
	asks     int // number of the replica that asks others to make way
	pods     []*corev1.Pod
}

func newCrowded(t *testing.T) *crowded {
	t.Helper()
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas, v.Options["displaces"] = 1, "Idle" })
	s.pending(0, "")
	c := &crowded{rig: newRig(t), starving: s.Observed, free: "10Mi"}
	c.Namespace = "flexlvm-system"
	c.nodes = []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "node-0", Labels: map[string]string{corev1.LabelHostname: "host-0"}}}}
	config := s.Config
	config.Options = s3Options(options{"displaceable": "true"})
	source, err := ParseSource(config)
	require.NoError(t, err)
	c.owner = &flexlvmv1.VolumeManager{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "w"}, Spec: flexlvmv1.VolumeManagerSpec{Volumes: []flexlvmv1.VolumeConfig{config}}}
	c.owner.UID = "w-uid" // as the fake client sets UIDs
	c.owner.Status.Volumes = []flexlvmv1.VolumeStatus{{ID: "a", Nodes: []flexlvmv1.ReplicaStatus{{Claim: "w-a-0", State: flexlvmv1.ReplicaComplete}}}}
	c.claim = replicaClaim(c.owner, config, source, 0, "")
	c.claim.Annotations[annotationDisplaceable], c.claim.Annotations[replica.AnnotationComplete] = "true", source.Load(0)
	c.claim.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}
	c.volume = &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-w", Annotations: map[string]string{}, Labels: map[string]string{
			replica.LabelDataset: hash(c.owner, "a"), pv.LabelNode: pv.NodeLabelValue("node-0"),
		}},
		Spec: corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Namespace: "team", Name: "w-a-0", UID: "w-a-0-uid"}},
	}
	return c
}

// reads adds a pod of namespace team that uses a claim.
func (c *crowded) reads(claim string, phase corev1.PodPhase) {
	c.pods = append(c.pods, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "reader"},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}},
		Status: corev1.PodStatus{Phase: phase},
	})
}

// displaced returns the dataset that asked the idle replica to make way; empty if none did.
func (c *crowded) displaced() (by string, err error) {
	c.Helper()
	starved := slices.Sorted(maps.Keys(c.starving.Replicas))
	objects := append([]client.Object{c.owner, c.claim, c.volume}, c.others...)
	for _, index := range starved {
		objects = append(objects, c.starving.Replicas[index].Claim)
	}
	for _, node := range c.nodes {
		free := resource.MustParse(cmp.Or(c.freeOn[node.Name], c.free))
		capacity := &storagev1.CSIStorageCapacity{
			ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "capacity-" + node.Name}, StorageClassName: DefaultClass, Capacity: &free,
			NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: node.Labels[corev1.LabelHostname]}},
		}
		if c.most != "" {
			most := resource.MustParse(c.most)
			capacity.MaximumVolumeSize = &most
		}
		objects = append(objects, capacity)
	}
	for _, pod := range c.pods {
		objects = append(objects, pod)
	}
	status := c.owner.Status
	for _, object := range objects {
		require.NoError(c, c.client.Create(c.Context(), object))
	}
	c.owner.Status = status
	require.NoError(c, c.client.Status().Update(c.Context(), c.owner))
	err = c.displace(c.Context(), c.starving, starved, &cacheView{nodes: c.nodes})
	got := &corev1.PersistentVolumeClaim{}
	c.fail = nil
	require.NoError(c, c.client.Get(c.Context(), client.ObjectKeyFromObject(c.claim), got))
	by = got.Annotations[annotationDisplacedBy]
	for _, index := range starved {
		own := &corev1.PersistentVolumeClaim{}
		require.NoError(c, c.client.Get(c.Context(), client.ObjectKeyFromObject(c.starving.Replicas[index].Claim), own))
		require.Equal(c, by != "" && err == nil && index == c.asks, own.Annotations[annotationMakesRoom] != "")
	}
	return by, err
}

func TestIdleReplicaIsRequestedToGo(t *testing.T) {
	by, err := newCrowded(t).displaced()
	require.NoError(t, err)
	require.Equal(t, "ns/v/a", by)
	c := newCrowded(t)
	c.reads("w-a", corev1.PodSucceeded) // has ended
	c.reads("another", corev1.PodRunning)
	c.pods[1].Name = "other"
	by, err = c.displaced()
	require.NoError(t, err)
	require.Equal(t, "ns/v/a", by)
}

func TestNotRequestedToGo(t *testing.T) {
	for name, change := range map[string]func(*crowded){
		"a pod reads it":                    func(c *crowded) { c.reads("w-a", corev1.PodRunning) },
		"a pod waits for it":                func(c *crowded) { c.reads("w-a", corev1.PodPending) },
		"nobody knows what a pod does":      func(c *crowded) { c.reads("w-a", corev1.PodUnknown) },
		"a pod uses the replica itself":     func(c *crowded) { c.reads("w-a-0", corev1.PodRunning) },
		"it does not say displaceable":      func(c *crowded) { delete(c.claim.Annotations, annotationDisplaceable) },
		"consumers write to it":             func(c *crowded) { c.claim.Annotations[replica.AnnotationWritable] = replica.Writable },
		"it is not complete":                func(c *crowded) { delete(c.claim.Annotations, replica.AnnotationComplete) },
		"its status does not name it":       func(c *crowded) { c.owner.Status.Volumes[0].Nodes[0].Claim = "w-a-99" },
		"its status says something else":    func(c *crowded) { c.owner.Status.Volumes[0].Nodes[0].State = flexlvmv1.ReplicaLeaving },
		"its spec cannot be read":           func(c *crowded) { c.owner.Spec.Volumes[0].Options["sourceURI"] = "s3://x/" },
		"the node's daemon is at it":        func(c *crowded) { c.volume.Annotations[replica.AnnotationEvict] = "2026-11-21T16:00:00Z" },
		"nobody knows where it lies":        func(c *crowded) { delete(c.volume.Labels, pv.LabelNode) },
		"its PersistentVolume is not known": func(c *crowded) { c.volume.Spec.ClaimRef.UID = "another" },
		"it is of another class":            func(c *crowded) { other := "other"; c.claim.Spec.StorageClassName = &other },
		"its owner is another by now":       func(c *crowded) { c.claim.OwnerReferences[0].UID = "before" },
		"it lies elsewhere":                 func(c *crowded) { c.starving.Fitting = map[string]bool{"node-1": true} },
		"the node has the dataset already":  func(c *crowded) { c.nodes[0].Labels[c.starving.label()] = "true" },
		"it would not help":                 func(c *crowded) { c.starving.Source.Capacity = resource.MustParse("2Gi") },
		"there is room by now":              func(c *crowded) { c.free = "1Gi" },
		"there is room by now, on a busy disk, whose capacity counts for less": func(c *crowded) { c.most = "1Gi" },
		"its node is cordoned": func(c *crowded) { c.nodes[0].Spec.Unschedulable = true },
		"its node is not ready": func(c *crowded) {
			c.nodes[0].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
		},
		"its node's disk is under pressure": func(c *crowded) {
			c.nodes[0].Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeDiskPressure, Effect: corev1.TaintEffectNoSchedule}}
		},
		"the replica is for another node": func(c *crowded) { c.starving.Replicas[0].Claim.Annotations[annotationNode] = "node-1" },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCrowded(t)
			change(c)
			by, err := c.displaced()
			require.NoError(t, err)
			require.Empty(t, by)
		})
	}
}

// With replicas: All each replica waits for a node of its own. A replica whose node has nothing to displace
// does not keep another one from displacing.
func TestIdleReplicaOfAnotherNodeIsRequestedToGo(t *testing.T) {
	c := newCrowded(t)
	s := newAll(t, func(v *flexlvmv1.VolumeConfig) { v.Options["displaces"] = "Idle" })
	s.pending(0, "node-0")
	s.pending(1, "node-1")
	c.starving, c.asks = s.Observed, 1
	c.nodes = append(c.nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{corev1.LabelHostname: "host-1"}}})
	c.volume.Labels[pv.LabelNode] = pv.NodeLabelValue("node-1")
	by, err := c.displaced()
	require.NoError(t, err)
	require.Equal(t, "ns/v/a", by)
}

// A cordoned node with room and a displaceable replica does not keep replicas on other nodes from being
// displaced.
func TestIdleReplicaBesideACordonedNodeIsRequestedToGo(t *testing.T) {
	c := newCrowded(t)
	cordoned := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{corev1.LabelHostname: "host-1"}}}
	cordoned.Spec.Unschedulable = true
	c.nodes, c.freeOn = append(c.nodes, cordoned), map[string]string{"node-1": "2Gi"}
	claim, volume := c.claim.DeepCopy(), c.volume.DeepCopy()
	claim.Name, volume.Name = "w-a-1", "pvc-w-1"
	volume.Labels[pv.LabelNode], volume.Spec.ClaimRef.Name, volume.Spec.ClaimRef.UID = pv.NodeLabelValue("node-1"), claim.Name, "w-a-1-uid"
	c.others = []client.Object{claim, volume}
	c.owner.Status.Volumes[0].Nodes = append(c.owner.Status.Volumes[0].Nodes, flexlvmv1.ReplicaStatus{Claim: claim.Name, State: flexlvmv1.ReplicaComplete})
	by, err := c.displaced()
	require.NoError(t, err)
	require.Equal(t, "ns/v/a", by)
}

// A cordoned node counts if the volume tolerates that, because its loader can run there.
func TestIdleReplicaOfAToleratedNodeIsRequestedToGo(t *testing.T) {
	c := newCrowded(t)
	c.nodes[0].Spec.Unschedulable = true
	c.nodes[0].Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}, {Key: "soft", Effect: corev1.TaintEffectPreferNoSchedule}}
	c.starving.Config.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists}}
	by, err := c.displaced()
	require.NoError(t, err)
	require.Equal(t, "ns/v/a", by)
}

// A replica may lack room for long and is planned every few seconds, so pods and capacities are listed only if
// something could be displaced.
func TestNothingIsAskedWhereNothingCouldGo(t *testing.T) {
	for name, change := range map[string]func(*crowded){
		"nothing is displaceable": func(c *crowded) { delete(c.claim.Annotations, annotationDisplaceable) },
		"it lies elsewhere":       func(c *crowded) { c.starving.Replicas[0].Claim.Annotations[annotationNode] = "node-1" },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCrowded(t)
			change(c)
			c.fail = func(verb string, object any) error {
				switch object.(type) {
				case *corev1.PodList, *storagev1.CSIStorageCapacityList:
					return fmt.Errorf("%s %T", verb, object)
				}
				return nil
			}
			_, err := c.displaced()
			require.NoError(t, err)
		})
	}
}

// A replica that one dataset has asked to make way is not asked by another.
func TestDisplacementIsRequestedOnce(t *testing.T) {
	c := newCrowded(t)
	c.claim.Annotations[annotationDisplacedBy] = "x/y/z"
	require.False(t, isDisplaceable(c.claim, c.starving))
	delete(c.claim.Annotations, annotationDisplacedBy)
	require.True(t, isDisplaceable(c.claim, c.starving))
}

// If any list fails, no replica is asked to make way.
func TestErrorsDisplaceNothing(t *testing.T) {
	for _, list := range []client.ObjectList{&corev1.PodList{}, &storagev1.CSIStorageCapacityList{}, &corev1.PersistentVolumeList{}, &corev1.PersistentVolumeClaimList{}} {
		c := newCrowded(t)
		c.fail = func(verb string, object any) error {
			if verb == "list" && reflect.TypeOf(object) == reflect.TypeOf(list) {
				return errors.New("the API server is away")
			}
			return nil
		}
		by, err := c.displaced()
		require.ErrorContains(t, err, "the API server is away", "%T", list)
		require.Empty(t, by)
	}
}
