package csicontroller_test

import (
	"context"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/flexlvm/flexlvm/internal/csicontroller"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Calls that wait for their node end before the lease is released, so that they reserve no room afterwards.
func TestCallsEndWhenTheGateCloses(t *testing.T) {
	gate := &csicontroller.Gate{}
	d := newDesk(t)
	b := serveAs(t, csicontroller.Config{Gate: gate, Snapshots: &csicontroller.Snapshots{Room: d.clerk, Seen: d.seen, Now: time.Now}},
		thin(made("pvc-1", "pvc-1", pv.CSI, volume.IOLimits{})))
	created := make(chan struct{})
	b.PrependReactor("create", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
		close(created)
		return false, nil, nil
	})
	ctx, closeGate := context.WithCancel(t.Context())
	closed := make(chan struct{})
	go func() {
		gate.Open(ctx)
		close(closed)
	}()
	called := make(chan error, 1)
	require.Eventually(t, func() bool {
		out, err := csi.NewIdentityClient(b.conn).Probe(t.Context(), &csi.ProbeRequest{})
		return err == nil && out.GetReady().GetValue()
	}, time.Minute, time.Millisecond)
	go func() {
		_, err := b.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: asked, SourceVolumeId: "flexlvm/pvc-1"})
		called <- err
	}()
	<-created
	closeGate()
	select {
	case <-closed:
	case <-time.After(25 * time.Second):
		require.Fail(t, "a call goes on without the lease")
	}
	require.Equal(t, codes.DeadlineExceeded, status.Code(<-called), "its snapshot exists")
	list, err := b.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{LabelSelector: pv.LabelSnapshot})
	require.NoError(t, err)
	require.Len(t, list.Items, 1)
}
