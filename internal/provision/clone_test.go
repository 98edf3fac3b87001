package provision_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func thinly(c *storagev1.StorageClass) {
	c.Parameters = map[string]string{"layout": "thin", "thinPool": "thinpool"}
}

func cloning(name string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: name}
	}
}

// cloneCast has two nodes with a thin pool, and on the first one the claim "source" of 1 GiB.
func cloneCast(t *testing.T) *cast {
	b := ledgertest.New(t, ledgertest.ThinReport("node-1", 10*ledgertest.OneGiB), ledgertest.ThinReport("node-2", 10*ledgertest.OneGiB))
	c := newCast(t)
	c.ledger = b.Ledger
	c.nodes = []*corev1.Node{
		node("node-1", map[string]string{corev1.LabelHostname: "host-1", "zone": "a"}),
		node("node-2", map[string]string{corev1.LabelHostname: "host-2", "zone": "b"}),
	}
	c.classes = []*storagev1.StorageClass{class(thinly), class(func(c *storagev1.StorageClass) { c.Name = "thick" })}
	c.claims = []*corev1.PersistentVolumeClaim{claim(func(c *corev1.PersistentVolumeClaim) {
		c.Name, c.UID = "source", "uid-of-source"
		c.Spec.VolumeName, c.Status.Phase = "pvc-source", corev1.ClaimBound
	})}
	object := thinVolume(t, ledgertest.ThinWant("pvc-source", volume.GiB, 0))
	object.Status.Phase = corev1.VolumeBound
	object.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "team-a", Name: "source", UID: "uid-of-source"}
	object.Labels = map[string]string{pv.LabelNode: "node-1"}
	object.Spec.FlexVolume.Options[volume.OptionCluster] = ledgertest.Cluster
	c.volumes = []*corev1.PersistentVolume{object}
	return c
}

func cloneOptions(selected string) controller.ProvisionOptions {
	return controller.ProvisionOptions{PVName: pvName, PVC: claim(cloning("source")), StorageClass: class(thinly), SelectedNodeName: selected}
}

// A copy is placed on its source's node, whatever node the scheduler has chosen.
func TestProvisionACopy(t *testing.T) {
	for name, tt := range map[string]struct {
		selected string
		change   func(*controller.ProvisionOptions)
	}{
		"the scheduler has chosen its node":   {"node-1", nil},
		"the scheduler has chosen another":    {"node-2", nil},
		"the scheduler's choice is gone":      {"node-9", nil},
		"its class binds at once":             {"", nil},
		"larger":                              {"node-2", func(o *controller.ProvisionOptions) { sized("4Gi")(o.PVC) }},
		"by the newer field":                  {"node-2", func(o *controller.ProvisionOptions) { byReference(o.PVC) }},
		"the class allows the source's alone": {"node-1", func(o *controller.ProvisionOptions) { onlyZone(o.StorageClass, "a") }},
	} {
		t.Run(name, func(t *testing.T) {
			c := cloneCast(t)
			o := cloneOptions(tt.selected)
			if tt.change != nil {
				tt.change(&o)
			}
			got, state, err := c.provisioner(t).Provision(context.Background(), o)
			require.NoError(t, err)
			require.Equal(t, controller.ProvisioningFinished, state)
			require.Equal(t, "node-1", got.Labels[pv.LabelNode])
			require.Equal(t, []string{"host-1"}, got.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values)
			options := got.Spec.FlexVolume.Options
			require.Equal(t, "pvc-source", options[volume.OptionCloneOf])
			require.Equal(t, ledgertest.GroupUUID, options[volume.OptionGroupUUID])
			require.Equal(t, "thinpool", options[volume.OptionThinPool])
			size := o.PVC.Spec.Resources.Requests[corev1.ResourceStorage]
			require.Equal(t, decimal(volume.XFSDeviceSize(volume.Bytes(size.Value()), 0)), got.Annotations[pv.AnnotationCharged], "as any thin volume of its size")
			offer, _ := c.ledger.Offer("node-1", ledgertest.ThinClass)
			require.Equal(t, 10*ledgertest.OneGiB-volume.XFSDeviceSize(volume.Bytes(size.Value()), 0), offer.Room)
		})
	}
}

func byReference(c *corev1.PersistentVolumeClaim) {
	c.Spec.DataSource, c.Spec.DataSourceRef = nil, &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "source", Namespace: ptr("team-a")}
}

func onlyZone(c *storagev1.StorageClass, zone string) {
	c.AllowedTopologies = []corev1.TopologySelectorTerm{{
		MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "zone", Values: []string{zone}}},
	}}
}

func TestProvisionACopyThatCannotBe(t *testing.T) {
	for name, tt := range map[string]struct {
		change  func(*cast, *controller.ProvisionOptions)
		err     string
		refused bool // permanently
		state   controller.ProvisioningState
	}{
		"no such claim":        {func(c *cast, _ *controller.ProvisionOptions) { c.claims = nil }, `dataSource "source": namespace "team-a" has no such claim; create it`, false, controller.ProvisioningFinished},
		"in another namespace": {func(c *cast, _ *controller.ProvisionOptions) { c.claims[0].Namespace = "team-b" }, `namespace "team-a" has no such claim`, false, controller.ProvisioningFinished},
		"not bound":            {func(c *cast, _ *controller.ProvisionOptions) { c.claims[0].Spec.VolumeName = "" }, "is not bound to a volume yet; start a pod that uses it", false, controller.ProvisioningFinished},
		"lost":                 {func(c *cast, _ *controller.ProvisionOptions) { c.claims[0].Status.Phase = corev1.ClaimLost }, "is not bound to a volume yet", false, controller.ProvisioningFinished},
		"being deleted": {func(c *cast, _ *controller.ProvisionOptions) {
			c.claims[0].DeletionTimestamp = ptr(metav1.NewTime(time.Unix(1, 0)))
		}, "is being deleted", false, controller.ProvisioningFinished},
		"its volume not seen": {func(c *cast, _ *controller.ProvisionOptions) { c.volumes = nil }, "cannot be looked up", false, controller.ProvisioningFinished},
		"its volume deleted": {func(c *cast, _ *controller.ProvisionOptions) {
			c.volumes[0].DeletionTimestamp = ptr(metav1.NewTime(time.Unix(1, 0)))
		}, "or is being deleted", false, controller.ProvisioningFinished},
		"its volume released":   {func(c *cast, _ *controller.ProvisionOptions) { c.volumes[0].Status.Phase = corev1.VolumeReleased }, "is not bound to that claim", false, controller.ProvisioningFinished},
		"its volume another's":  {func(c *cast, _ *controller.ProvisionOptions) { c.volumes[0].Spec.ClaimRef.UID = "x" }, "is not bound to that claim", false, controller.ProvisioningFinished},
		"its volume unreadable": {func(c *cast, _ *controller.ProvisionOptions) { c.volumes[0].Spec.FlexVolume.Options["colour"] = "red" }, `option "colour": is not known`, false, controller.ProvisioningFinished},
		"not one of flexlvm":    {func(c *cast, _ *controller.ProvisionOptions) { c.volumes[0].Spec.FlexVolume.Driver = "x/y" }, "is not one of flexlvm", true, controller.ProvisioningFinished},
		"not of flexVolume":     {func(c *cast, _ *controller.ProvisionOptions) { c.volumes[0].Spec.FlexVolume = nil }, "is not one of flexlvm", true, controller.ProvisioningFinished},
		"linear":                {func(c *cast, _ *controller.ProvisionOptions) { makeLinear(c.volumes[0]) }, `has layout "linear", and only those of layout "thin" can be copied; take a VolumeSnapshot of that claim, which needs the CSI driver, and name it in a claim of a class like that of the source`, true, controller.ProvisioningFinished},
		"in another pool": {func(c *cast, _ *controller.ProvisionOptions) {
			c.volumes[0].Spec.FlexVolume.Options[volume.OptionThinPool] = "other"
		}, `is in thin pool "flexlvm/other", and StorageClass "flexlvm" is of "flexlvm/thinpool"`, true, controller.ProvisioningFinished},
		"with another file system": {func(c *cast, _ *controller.ProvisionOptions) {
			c.volumes[0].Spec.FlexVolume.Options[volume.OptionFSType] = "ext4"
		}, `was made with ext4, and StorageClass "flexlvm" makes xfs; a copy holds what its source does`, true, controller.ProvisioningFinished},
		"encrypted": {func(c *cast, _ *controller.ProvisionOptions) {
			c.volumes[0].Spec.FlexVolume.Options[volume.OptionEncrypted] = "true"
		}, "must both be encrypted, or neither; use a class like that of the source", true, controller.ProvisioningFinished},
		"of another cluster": {func(c *cast, _ *controller.ProvisionOptions) {
			c.volumes[0].Spec.FlexVolume.Options[volume.OptionCluster] = "x"
		}, `was created for cluster "x"`, true, controller.ProvisioningFinished},
		"a replica": {func(c *cast, _ *controller.ProvisionOptions) {
			c.volumes[0].Spec.FlexVolume.Options[volume.OptionKind] = "dataset"
		}, "is a replica of a dataset", true, controller.ProvisioningFinished},
		"smaller than it": {func(_ *cast, o *controller.ProvisionOptions) { sized("512Mi")(o.PVC) }, "536870912 bytes (512 MiB) are asked for and dataSource \"source\" has 1073741824 bytes (1 GiB)", true, controller.ProvisioningFinished},
		"smaller than it by now": {func(c *cast, _ *controller.ProvisionOptions) {
			c.volumes[0].Spec.Capacity[corev1.ResourceStorage] = ledgertest.Quantity(2 * volume.GiB)
		}, "a copy is as large as its source or larger", true, controller.ProvisioningFinished},
		"with more inodes than the class has": {func(c *cast, _ *controller.ProvisionOptions) {
			c.volumes[0].Spec.FlexVolume.Options[volume.OptionInodes] = "50000000"
		}, `dataSource "source": its volume takes 28391243776 bytes (26.44 GiB), more than one of StorageClass "flexlvm" and this size does; use a class with the inodes of the source, or ask for more`, true, controller.ProvisioningFinished},
		"its node silent": {func(c *cast, _ *controller.ProvisionOptions) { c.ledger.Forget(ledgertest.Report("node-1", 0)) }, `its node "node-1" has not reported`, false, controller.ProvisioningFinished},
		"its node gone":   {func(c *cast, _ *controller.ProvisionOptions) { c.nodes = c.nodes[1:] }, `node "node-1" is gone from the cluster`, false, controller.ProvisioningFinished},
		"its group another": {func(c *cast, _ *controller.ProvisionOptions) {
			c.volumes[0].Spec.FlexVolume.Options[volume.OptionGroupUUID] = "XfRyGj-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3T"
		}, "is another one than it was made in; unless the former disks come back, it is lost", false, controller.ProvisioningFinished},
		"where the class is not": {func(_ *cast, o *controller.ProvisionOptions) { onlyZone(o.StorageClass, "b") }, `dataSource "source" is on node "node-1", and a copy is on the node of its source: StorageClass "flexlvm" does not allow node "node-1" (allowedTopologies)`, false, controller.ProvisioningFinished},
		"its node full":          {func(_ *cast, o *controller.ProvisionOptions) { sized("20Gi")(o.PVC) }, `dataSource "source" is on node "node-1", and a copy is on the node of its source: node "node-1" has no room for it`, false, controller.ProvisioningReschedule},
		"its node full, at once": {func(_ *cast, o *controller.ProvisionOptions) { sized("20Gi")(o.PVC); o.SelectedNodeName = "" }, `no room for it`, false, controller.ProvisioningFinished},
		"its pool closed":        {func(c *cast, _ *controller.ProvisionOptions) { closePool(t, c) }, `takes no new volumes in thin pool "flexlvm/thinpool": it is full`, false, controller.ProvisioningReschedule},
	} {
		t.Run(name, func(t *testing.T) {
			c, o := cloneCast(t), cloneOptions("node-2")
			tt.change(c, &o)
			before, _ := c.ledger.Offer("node-1", ledgertest.ThinClass)
			got, state, err := c.provisioner(t).Provision(context.Background(), o)
			require.Nil(t, got, "never an empty volume in its place")
			after, _ := c.ledger.Offer("node-1", ledgertest.ThinClass)
			require.Equal(t, before.Room, after.Room, "nothing is reserved")
			require.ErrorContains(t, err, tt.err)
			require.Equal(t, tt.state, state)
			refusal := (*controlplane.Refusal)(nil)
			require.Equal(t, tt.refused, errors.As(err, &refusal))
			require.Equal(t, tt.refused, c.refused == 1)
		})
	}
}

func makeLinear(object *corev1.PersistentVolume) {
	object.Spec.FlexVolume.Options[volume.OptionLayout] = "linear"
	delete(object.Spec.FlexVolume.Options, volume.OptionThinPool)
}

func closePool(t *testing.T, c *cast) {
	t.Helper()
	c.ledger.Report(ledgertest.ThinReport("node-1", 10*ledgertest.OneGiB, func(p *flexlvmv1.Pool) { p.Closed = "it is full" }))
}

// A pod with a claim that is to be a copy has to run on the copy's node: the copy is served first, and the pod's
// other claims are rescheduled until the scheduler has seen the copy.
func TestProvisionForAPodWithACopy(t *testing.T) {
	thick := func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = ptr("thick") }
	copyClaim := other("copy", "1Gi", cloning("source"))
	scratch := other("db-0-scratch", "64Mi", thick)
	t.Run("the copy takes what the pod needs into account", func(t *testing.T) {
		c, o := cloneCast(t), cloneOptions("node-2")
		c.claims = append(c.claims, other("log", "20Gi", thick), scratch)
		c.pods = []*corev1.Pod{using("data", "log")}
		_, state, err := c.provisioner(t).Provision(context.Background(), o)
		require.ErrorContains(t, err, `node "node-1" has no room for the claims`)
		require.Equal(t, controller.ProvisioningReschedule, state)
		c.claims[1] = other("log", "1Gi", thick)
		got, _, err := c.provisioner(t).Provision(context.Background(), o)
		require.NoError(t, err)
		require.Equal(t, "node-1", got.Labels[pv.LabelNode])
	})
	for _, selected := range []string{"node-1", "node-2"} {
		t.Run("what it is to be a copy of is lost, on "+selected, func(t *testing.T) {
			c := cloneCast(t)
			c.claims = append(c.claims, copyClaim, scratch)
			c.volumes[0].Spec.FlexVolume.Options[volume.OptionGroupUUID] = "XfRyGj-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3T"
			c.pods = []*corev1.Pod{using("data", "copy")}
			o := options(selected)
			o.StorageClass = c.classes[1]
			_, state, err := c.provisioner(t).Provision(t.Context(), o)
			require.ErrorContains(t, err, `also needs claim "copy": dataSource "source" is on node "node-1", and a copy is on the node of its source: volume group flexlvm there is another one than it was made in`)
			require.Equal(t, controller.ProvisioningNoChange, state, "no other node is any better")
		})
	}
	for name, tt := range map[string]struct {
		selected string
		volume   string // of the copy, if it has one already
		err      string
	}{
		"on another node":                      {"node-2", "", `claim "copy" is to be a copy of claim "source", which is on node "node-1" and this one was to be on node "node-2"; the scheduler is asked again`},
		"on another node, the copy is bound":   {"node-2", "pvc-copy", `claim "copy" has its volume on node "node-1" and this one was to be on node "node-2"`},
		"on its node":                          {"node-1", "", ""},
		"on its node, the copy is bound":       {"node-1", "pvc-copy", ""},
		"bound to what the cache has not seen": {"node-2", "pvc-unseen", `PersistentVolume "pvc-unseen" of claim "copy" is not seen yet`},
	} {
		t.Run(name, func(t *testing.T) {
			c := cloneCast(t)
			one := copyClaim.DeepCopy()
			one.Spec.VolumeName = tt.volume
			c.claims = append(c.claims, one, scratch)
			bound := c.volumes[0].DeepCopy()
			bound.Name, bound.UID = "pvc-copy", types.UID("x")
			c.volumes = append(c.volumes, bound)
			c.pods = []*corev1.Pod{using("data", "copy")}
			o := options(tt.selected)
			o.StorageClass = c.classes[1]
			got, state, err := c.provisioner(t).Provision(context.Background(), o)
			if tt.err != "" {
				require.ErrorContains(t, err, tt.err)
				want := controller.ProvisioningReschedule
				if tt.volume == "pvc-unseen" {
					want = controller.ProvisioningNoChange
				}
				require.Equal(t, want, state)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.selected, got.Labels[pv.LabelNode])
		})
	}
}
