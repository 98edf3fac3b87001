package csidoor

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A call for a target that another call is working on fails as Aborted. Calls for other targets
// proceed.
func TestOneCallADirectory(t *testing.T) {
	d := open(t)
	begun, goOn := make(chan struct{}, 2), make(chan struct{})
	d.engine.do = func(context.Context) error { begun <- struct{}{}; <-goOn; return nil }
	r := publish(t)
	first := make(chan error, 1)
	go func() { _, err := d.NodePublishVolume(context.Background(), r); first <- err }()
	<-begun
	_, err := d.NodePublishVolume(t.Context(), r)
	require.Equal(t, codes.Aborted, status.Code(err))
	_, err = d.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: r.GetVolumeId(), TargetPath: r.GetTargetPath()})
	require.Equal(t, codes.Aborted, status.Code(err))
	other := make(chan error, 1)
	go func() { _, err := d.NodePublishVolume(context.Background(), publish(t)); other <- err }()
	<-begun
	close(goOn)
	require.NoError(t, <-first)
	require.NoError(t, <-other)
	_, err = d.NodePublishVolume(t.Context(), r)
	require.NoError(t, err)
}

// A panic fails only its own call, and the panic's text is not returned.
func TestPanicFailsOneCall(t *testing.T) {
	d := open(t)
	d.engine.do = func(context.Context) error { panic("hush") }
	r := publish(t)
	_, err := d.NodePublishVolume(t.Context(), r)
	require.Equal(t, codes.Internal, status.Code(err))
	require.NotContains(t, err.Error(), "hush")
	d.engine.do = nil
	_, err = d.NodePublishVolume(t.Context(), r)
	require.NoError(t, err)
}

// The engine gets the caller's deadline.
func TestDeadline(t *testing.T) {
	d := open(t)
	d.engine.do = func(ctx context.Context) error { <-ctx.Done(); return fmt.Errorf("lvcreate: %w", ctx.Err()) }
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := d.NodePublishVolume(ctx, publish(t))
	require.Equal(t, codes.DeadlineExceeded, status.Code(err))
}

// A disk that does not answer blocks one call for a volume's usage, however often kubelet calls, and
// does not keep the volume from being unmounted.
func TestUsageThatHangs(t *testing.T) {
	d := open(t)
	begun, goOn := make(chan struct{}), make(chan struct{})
	var asked atomic.Bool
	d.engine.do = func(context.Context) error {
		if asked.CompareAndSwap(false, true) {
			close(begun)
			<-goOn
		}
		return nil
	}
	r := publish(t)
	usage := func(ctx context.Context) error {
		_, err := d.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: r.GetVolumeId(), VolumePath: r.GetTargetPath()})
		return err
	}
	first := make(chan error, 1)
	go func() { first <- usage(context.Background()) }()
	<-begun
	for range 9 {
		require.Equal(t, codes.Aborted, status.Code(usage(t.Context())))
	}
	_, err := d.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: r.GetVolumeId(), TargetPath: r.GetTargetPath()})
	require.NoError(t, err)
	require.Equal(t, []string{"space", "unmount"}, d.engine.verbs())
	close(goOn)
	require.NoError(t, <-first)
	require.NoError(t, usage(t.Context()))
}
