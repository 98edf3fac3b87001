package provision_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/provision"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func decimal(b volume.Bytes) string { return strconv.FormatInt(int64(b), 10) }

func node(name string, labels map[string]string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

// A cast is the state of the API that a provisioner sees, and its ledger.
type cast struct {
	ledger  *ledger.Ledger
	events  *record.FakeRecorder
	nodes   []*corev1.Node
	claims  []*corev1.PersistentVolumeClaim
	classes []*storagev1.StorageClass
	pods    []*corev1.Pod
	volumes []*corev1.PersistentVolume
	refused int
	away    error // error of the list of pods
	owners  []*metav1.PartialObjectMetadata
	lost    error // error of the read of an owner

	attributes []*storagev1.VolumeAttributesClass
	unread     error // error of the read of an attributes class

	snapshots map[string]string // handles, by namespace/name
}

// newCast has two nodes with room for ten volumes of 1 GiB each. The second node has no hostname.
func newCast(t *testing.T) *cast {
	b := ledgertest.New(t, ledgertest.Report("node-1", 10*ledgertest.OneGiB), ledgertest.Report("node-2", 10*ledgertest.OneGiB))
	return &cast{
		ledger: b.Ledger, events: record.NewFakeRecorder(10), classes: []*storagev1.StorageClass{class(nil)},
		nodes: []*corev1.Node{node("node-1", map[string]string{corev1.LabelHostname: "host-1"}), node("node-2", nil)},
	}
}

func (c *cast) provisioner(t *testing.T) *provision.Provisioner {
	t.Helper()
	store := func(objects ...runtime.Object) cache.Indexer {
		indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		for _, o := range objects {
			require.NoError(t, indexer.Add(o))
		}
		return indexer
	}
	return provision.NewProvisioner(provision.Parts{
		Events: c.events, Cluster: ledgertest.Cluster, Ledger: c.ledger,
		Listers: provision.Listers{
			Nodes:   corelisters.NewNodeLister(store(objects(c.nodes)...)),
			Claims:  corelisters.NewPersistentVolumeClaimLister(store(objects(c.claims)...)),
			Classes: storagelisters.NewStorageClassLister(store(objects(c.classes)...)),
			Volumes: corelisters.NewPersistentVolumeLister(store(objects(c.volumes)...)),
			OnNode: func(label string) (out []*corev1.PersistentVolume, err error) {
				for _, one := range c.volumes {
					if one.Labels[pv.LabelNode] == label {
						out = append(out, one)
					}
				}
				return out, nil
			},
			Pods: func(context.Context, string, string) ([]*corev1.Pod, error) { return c.pods, c.away },
			Live: provision.Live{
				Claim: func(_ context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
					for _, one := range c.claims {
						if one.Namespace == namespace && one.Name == name {
							return one, nil
						}
					}
					return nil, apierrors.NewNotFound(corev1.Resource("persistentvolumeclaims"), name)
				},
				Snapshot: func(_ context.Context, namespace, name string) (string, error) {
					if handle := c.snapshots[namespace+"/"+name]; handle != "" {
						return handle, nil
					}
					return "", errors.New("that VolumeSnapshot is not ready yet")
				},
				Owner: func(_ context.Context, namespace, name string) (*metav1.PartialObjectMetadata, error) {
					for _, one := range c.owners {
						if one.Namespace == namespace && one.Name == name && c.lost == nil {
							return one, nil
						}
					}
					if c.lost != nil {
						return nil, c.lost
					}
					return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "volumemanagers"}, name)
				},
				Attributes: func(_ context.Context, name string) (*storagev1.VolumeAttributesClass, error) {
					for _, one := range c.attributes {
						if one.Name == name {
							return one, nil
						}
					}
					if c.unread != nil {
						return nil, c.unread
					}
					return nil, apierrors.NewNotFound(storagev1.Resource("volumeattributesclasses"), name)
				},
			},
		},
		Refused: func(*controlplane.Refusal) { c.refused++ },
	})
}

func objects[T runtime.Object](all []T) []runtime.Object {
	var out []runtime.Object
	for _, o := range all {
		out = append(out, o)
	}
	return out
}

func options(selected string) controller.ProvisionOptions {
	return controller.ProvisionOptions{PVName: pvName, PVC: claim(nil), StorageClass: class(nil), SelectedNodeName: selected}
}

func TestProvision(t *testing.T) {
	c := newCast(t)
	p := c.provisioner(t)

	got, state, err := p.Provision(context.Background(), options("node-1"))
	require.NoError(t, err)
	require.Equal(t, controller.ProvisioningFinished, state)
	require.Equal(t, pvName, got.Name)
	require.Zero(t, c.refused)
	require.Equal(t, ledgertest.GroupUUID, got.Spec.FlexVolume.Options[volume.OptionGroupUUID], "no other group of that name will do")

	tests := map[string]struct {
		options func(*controller.ProvisionOptions)
		state   controller.ProvisioningState
		code    codes.Code // InvalidArgument: the library retries slowly
		err     string
	}{
		"refused": {
			options: func(o *controller.ProvisionOptions) { o.PVC.Spec.VolumeMode = ptr(corev1.PersistentVolumeBlock) },
			state:   controller.ProvisioningFinished,
			code:    codes.InvalidArgument,
			err:     "volumeMode Block is not supported",
		},
		"the node is gone": {
			options: func(o *controller.ProvisionOptions) { o.SelectedNodeName = "node-9" },
			state:   controller.ProvisioningReschedule,
			code:    codes.Unknown,
			err:     `node "node-9" is gone from the cluster`,
		},
		"the class does not allow the node": { // the author of a claim can set the selected node
			options: func(o *controller.ProvisionOptions) { onlyZone(o.StorageClass, "nowhere") },
			state:   controller.ProvisioningReschedule,
			code:    codes.Unknown,
			err:     `StorageClass "flexlvm" does not allow node "node-1" (allowedTopologies)`,
		},
		"the node has no hostname": {
			options: func(o *controller.ProvisionOptions) { o.SelectedNodeName = "node-2" },
			state:   controller.ProvisioningFinished,
			code:    codes.Unknown,
			err:     `node "node-2" has no label kubernetes.io/hostname`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			o := options("node-1")
			tt.options(&o)
			got, state, err := p.Provision(context.Background(), o)
			require.Nil(t, got)
			require.ErrorContains(t, err, tt.err)
			require.Equal(t, tt.state, state)
			require.Equal(t, tt.code, status.Code(err))
		})
	}
	require.Equal(t, 1, c.refused)
}

func TestProvisionWhileTheServerIsAway(t *testing.T) {
	c := newCast(t)
	c.away = errors.New("connection refused")
	_, state, err := c.provisioner(t).Provision(context.Background(), options("node-1"))
	require.EqualError(t, err, "connection refused")
	require.Equal(t, controller.ProvisioningNoChange, state)
}

func TestProvisionWithoutRoom(t *testing.T) {
	c := newCast(t)
	o := options("node-1")
	o.PVC.Spec.Resources.Requests[corev1.ResourceStorage] = ledgertest.Quantity(20 * volume.GiB)
	_, state, err := c.provisioner(t).Provision(context.Background(), o)
	require.ErrorContains(t, err, `node "node-1" has no room for it`)
	require.Equal(t, controller.ProvisioningReschedule, state)
}

// other returns another claim of the pod.
func other(name, size string, change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	return claim(func(c *corev1.PersistentVolumeClaim) {
		c.Name, c.UID = name, types.UID("uid-of-"+name)
		c.Spec.StorageClassName = ptr("flexlvm")
		sized(size)(c)
		if change != nil {
			change(c)
		}
	})
}

// using returns a pod that uses the claims, and an ephemeral volume.
func using(claims ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "db-0", Namespace: "team-a"}}
	for _, name := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}})
	}
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}})
	return pod
}

// The claims of a pod are served together on a node that has room for all of them, or not on that node.
func TestProvisionLooksAtThePod(t *testing.T) {
	elsewhere := class(func(c *storagev1.StorageClass) { c.Name, c.Provisioner = "elsewhere", "example.com/other" })
	atOnce := class(func(c *storagev1.StorageClass) {
		c.Name, c.VolumeBindingMode = "at-once", ptr(storagev1.VolumeBindingImmediate)
	})
	of := func(class string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = ptr(class) }
	}
	for name, tt := range map[string]struct {
		other *corev1.PersistentVolumeClaim
		err   string
		state controller.ProvisioningState
	}{
		"both fit":                       {other: other("log", "8Gi", nil)},
		"they do not fit together":       {other: other("log", "10500Mi", nil), err: "no room for the claims data, db-0-scratch, log together", state: controller.ProvisioningReschedule},
		"the other has its volume":       {other: other("log", "10500Mi", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "pvc-1" })},
		"its volume is not seen yet":     {other: other("log", "1Gi", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "pvc-2" }), err: `PersistentVolume "pvc-2" of claim "log" is not seen yet`, state: controller.ProvisioningNoChange},
		"the other is another's":         {other: other("log", "10500Mi", of("elsewhere"))},
		"the other goes where it likes":  {other: other("log", "10500Mi", of("at-once"))},
		"the other needs no class":       {other: other("log", "10500Mi", of(""))},
		"the other is refused":           {other: other("log", "1Gi", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = ptr(corev1.PersistentVolumeBlock) }), err: `pod "db-0", which uses this claim, also needs claim "log": volumeMode Block`, state: controller.ProvisioningNoChange},
		"the other has an unknown class": {other: other("log", "1Gi", of("none")), err: `also needs claim "log"`, state: controller.ProvisioningNoChange},
		"the other is not there yet":     {other: other("else", "1Gi", nil), err: `also needs claim "log"`, state: controller.ProvisioningNoChange},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCast(t)
			c.classes = append(c.classes, elsewhere, atOnce)
			c.claims = []*corev1.PersistentVolumeClaim{tt.other, other("db-0-scratch", "64Mi", nil)}
			c.pods = []*corev1.Pod{using("data", "log")}
			c.volumes = []*corev1.PersistentVolume{ledgertest.PersistentVolume("node-1", ledgertest.Want("pvc-1", volume.GiB))}
			got, state, err := c.provisioner(t).Provision(context.Background(), options("node-1"))
			if tt.err != "" {
				require.ErrorContains(t, err, tt.err)
				require.Equal(t, tt.state, state)
				require.Equal(t, codes.Unknown, status.Code(err), "it is not put off for minutes")
				return
			}
			require.NoError(t, err)
			require.Equal(t, pvName, got.Name)
		})
	}
}

// A pod that does not fit, or can never start, does not keep another pod from a claim that both use.
func TestProvisionForTheOtherPod(t *testing.T) {
	for name, far := range map[string]*corev1.PersistentVolumeClaim{
		"too large": other("far", "500Gi", nil),
		"refused":   other("far", "1Gi", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = ptr(corev1.PersistentVolumeBlock) }),
	} {
		t.Run(name, func(t *testing.T) {
			c := newCast(t)
			c.claims = []*corev1.PersistentVolumeClaim{far, other("near", "1Gi", nil), other("db-0-scratch", "64Mi", nil)}
			greedy, modest, leaving := using("data", "far"), using("data", "near"), using("data", "unknown")
			leaving.DeletionTimestamp = ptr(metav1.NewTime(time.Unix(1, 0)))
			c.pods = []*corev1.Pod{leaving, greedy}
			_, _, err := c.provisioner(t).Provision(context.Background(), options("node-1"))
			require.Error(t, err)
			c.pods = append(c.pods, modest)
			_, _, err = c.provisioner(t).Provision(context.Background(), options("node-1"))
			require.NoError(t, err)
			offer, _ := c.ledger.Offer("node-1", volume.Spec{Group: "flexlvm"})
			require.Equal(t, 8*ledgertest.OneGiB-volume.XFSDeviceSize(64*volume.MiB, 0), offer.Room, "the modest pod's claims have room, and nobody else's")
		})
	}
}

// With immediate binding the provisioner chooses the node.
func TestProvisionChoosesTheNode(t *testing.T) {
	ready := func(c corev1.ConditionStatus) []corev1.NodeCondition {
		return []corev1.NodeCondition{{Type: corev1.NodeReady, Status: c}}
	}
	zone := func(values ...string) func(*controller.ProvisionOptions) {
		return func(o *controller.ProvisionOptions) {
			o.StorageClass.AllowedTopologies = []corev1.TopologySelectorTerm{{
				MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "zone", Values: values}},
			}}
		}
	}
	for name, tt := range map[string]struct {
		options func(*controller.ProvisionOptions)
		nodes   func(map[string]*corev1.Node)
		want    string // hostname
		err     string
	}{
		"the emptiest":              {want: "roomy"},
		"not a cordoned one":        {nodes: func(n map[string]*corev1.Node) { n["roomy"].Spec.Unschedulable = true }, want: "middle"},
		"not one that is not ready": {nodes: func(n map[string]*corev1.Node) { n["roomy"].Status.Conditions = ready(corev1.ConditionUnknown) }, want: "middle"},
		"one that is ready":         {nodes: func(n map[string]*corev1.Node) { n["roomy"].Status.Conditions = ready(corev1.ConditionTrue) }, want: "roomy"},
		"not a tainted one": {nodes: func(n map[string]*corev1.Node) {
			n["roomy"].Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
		}, want: "middle"},
		"one with a mild taint": {nodes: func(n map[string]*corev1.Node) {
			n["roomy"].Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectPreferNoSchedule}}
		}, want: "roomy"},
		"only where the class allows": {options: zone("b"), want: "middle"},
		"where the class allows many": {options: zone("a", "b"), want: "roomy"},
		"nowhere, the class forbids":  {options: zone("c"), err: `no node that may run pods and that StorageClass "flexlvm" allows has volume group "flexlvm"`},
		"nowhere, there is no group": {options: func(o *controller.ProvisionOptions) {
			o.StorageClass.Parameters = map[string]string{"volumeGroup": "data"}
		}, err: `has volume group "data"`},
		"nowhere, there is no room": {options: func(o *controller.ProvisionOptions) { sized("30Gi")(o.PVC) }, err: `no node that may run pods and that StorageClass "flexlvm" allows has room for it: 32212254720 bytes (30 GiB) are asked for, and the most that any of 3 nodes`},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCast(t)
			c.ledger = ledgertest.New(t, ledgertest.Report("small", ledgertest.OneGiB), ledgertest.Report("middle", 5*ledgertest.OneGiB), ledgertest.Report("roomy", 20*ledgertest.OneGiB)).Ledger
			nodes := map[string]*corev1.Node{}
			for name, zone := range map[string]string{"small": "a", "middle": "b", "roomy": "a"} {
				nodes[name] = node(name, map[string]string{corev1.LabelHostname: name, "zone": zone})
				c.nodes = append(c.nodes, nodes[name])
			}
			if tt.nodes != nil {
				tt.nodes(nodes)
			}
			o := options("")
			o.StorageClass.VolumeBindingMode = ptr(storagev1.VolumeBindingImmediate)
			if tt.options != nil {
				tt.options(&o)
			}
			got, state, err := c.provisioner(t).Provision(context.Background(), o)
			require.Equal(t, controller.ProvisioningFinished, state)
			if tt.err != "" {
				require.ErrorContains(t, err, tt.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, []string{tt.want}, got.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values)
		})
	}
}

func TestShouldProvision(t *testing.T) {
	p := newCast(t).provisioner(t)
	require.True(t, p.ShouldProvision(context.Background(), claim(nil)))
	require.False(t, p.ShouldProvision(context.Background(), claim(func(c *corev1.PersistentVolumeClaim) {
		c.DeletionTimestamp = ptr(metav1.NewTime(time.Unix(1, 0)))
	})))
}

func TestDeleteLeavesTheVolumeToItsNode(t *testing.T) {
	c := newCast(t)
	p, events := c.provisioner(t), c.events
	pv, _, err := p.Provision(context.Background(), options("node-1"))
	require.NoError(t, err)

	require.NoError(t, p.Delete(context.Background(), pv), "what never was in the API is nothing to take back")
	require.Empty(t, events.Events)

	pv.UID = "in-the-api"
	err = p.Delete(context.Background(), pv)
	// The library checks for exactly this type.
	require.IsType(t, &controller.IgnoredError{}, err)
	require.Equal(t, `Normal WaitingForNode the claim is gone; the node daemon of node "host-1" releases volume "`+pvName+
		`" and then removes the finalizer flexlvm.io/volume; if this lasts, see whether its pod of DaemonSet flexlvm-gc runs`, <-events.Events)
}
