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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/flexlvm/flexlvm/internal/provision"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func decimal(b volume.Bytes) string { return strconv.FormatInt(int64(b), 10) }

func node(name string, labels map[string]string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

func options(selected string) controller.ProvisionOptions {
	return controller.ProvisionOptions{PVName: pvName, PVC: claim(nil), StorageClass: class(nil), SelectedNodeName: selected}
}

func TestProvision(t *testing.T) {
	client := fake.NewClientset(
		node("node-1", map[string]string{corev1.LabelHostname: "host-1"}),
		node("node-2", nil),
	)
	refusals := 0
	p := provision.NewProvisioner(client, record.NewFakeRecorder(10), clusterUID, func(*provision.Refusal) { refusals++ })

	got, state, err := p.Provision(context.Background(), options("node-1"))
	require.NoError(t, err)
	require.Equal(t, controller.ProvisioningFinished, state)
	require.Equal(t, pvName, got.Name)
	require.Zero(t, refusals)

	tests := map[string]struct {
		options func(*controller.ProvisionOptions)
		state   controller.ProvisioningState
		code    codes.Code // InvalidArgument: the library will not hurry to try again
		err     string
	}{
		"refused": {
			options: func(o *controller.ProvisionOptions) { o.PVC.Spec.VolumeMode = ptr(corev1.PersistentVolumeBlock) },
			state:   controller.ProvisioningFinished,
			code:    codes.InvalidArgument,
			err:     "volumeMode Block is not supported",
		},
		"no node is selected": {
			options: func(o *controller.ProvisionOptions) {
				o.SelectedNodeName = ""
				o.StorageClass.VolumeBindingMode = ptr(storagev1.VolumeBindingImmediate)
			},
			state: controller.ProvisioningFinished,
			code:  codes.InvalidArgument,
			err:   `StorageClass "flexlvm" has volumeBindingMode Immediate`,
		},
		"the node is gone": {
			options: func(o *controller.ProvisionOptions) { o.SelectedNodeName = "node-9" },
			state:   controller.ProvisioningReschedule,
			code:    codes.Unknown,
			err:     `node "node-9" is gone from the cluster`,
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
	require.Equal(t, 2, refusals)
}

func TestProvisionWhileTheServerIsAway(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("connection refused")
	})
	p := provision.NewProvisioner(client, record.NewFakeRecorder(10), clusterUID, nil)
	_, state, err := p.Provision(context.Background(), options("node-1"))
	require.EqualError(t, err, `get node "node-1": connection refused`)
	require.Equal(t, controller.ProvisioningNoChange, state)
}

func TestShouldProvision(t *testing.T) {
	p := provision.NewProvisioner(fake.NewClientset(), record.NewFakeRecorder(10), clusterUID, nil)
	require.True(t, p.ShouldProvision(context.Background(), claim(nil)))
	require.False(t, p.ShouldProvision(context.Background(), claim(func(c *corev1.PersistentVolumeClaim) {
		c.DeletionTimestamp = ptr(metav1.NewTime(time.Unix(1, 0)))
	})))
}

func TestDeleteLeavesTheVolumeToItsNode(t *testing.T) {
	events := record.NewFakeRecorder(10)
	p := provision.NewProvisioner(fake.NewClientset(node("node-1", map[string]string{corev1.LabelHostname: "host-1"})), events, clusterUID, nil)
	pv, _, err := p.Provision(context.Background(), options("node-1"))
	require.NoError(t, err)

	require.NoError(t, p.Delete(context.Background(), pv), "what never was in the API is nothing to take back")
	require.Empty(t, events.Events)

	pv.UID = "in-the-api"
	err = p.Delete(context.Background(), pv)
	// The library looks at the very type.
	require.IsType(t, &controller.IgnoredError{}, err)
	require.Equal(t, `Normal WaitingForNode the claim is gone; logical volume "`+pvName+
		`" stays on node "host-1" until flexlvm there has taken it back and removed the finalizer`, <-events.Events)
}
