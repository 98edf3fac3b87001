// Package csinode calls the CSI driver as kubelet does, over a socket, with an engine in the same process: a test
// that kills the process, or cuts the power, at a step of the engine does so in the middle of a call.
package csinode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/flexlvm/flexlvm/internal/csidoor"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Node is a running driver.
type Node struct {
	client csi.NodeClient
	conn   *grpc.ClientConn
	stop   context.CancelFunc
	ended  chan error
	ahead  atomic.Int64 // how far the driver's clock is ahead, in nanoseconds

	// Secrets are sent with every mount and growth, as kubelet sends the content of the PersistentVolume's Secret.
	Secrets map[string]string
}

// Start starts the driver on a socket. The caller must close the Node.
func Start(ctx context.Context, socket string, engine csidoor.Engine) (*Node, error) {
	// The socket of a killed driver would be taken for this one's.
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	ctx, stop := context.WithCancel(ctx)
	n := &Node{stop: stop, ended: make(chan error, 1)}
	go func() {
		n.ended <- csidoor.Serve(ctx, csidoor.Config{Socket: socket, Node: "node", Version: "test", Log: log, Now: n.now}, engine)
	}()
	for {
		select {
		case err := <-n.ended:
			stop()
			return nil, fmt.Errorf("start the CSI driver: %w", err)
		case <-time.After(time.Millisecond):
		}
		if _, err := os.Lstat(socket); err == nil {
			break
		}
	}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		stop()
		return nil, errors.Join(err, <-n.ended)
	}
	n.conn, n.client = conn, csi.NewNodeClient(conn)
	return n, nil
}

// Close stops the driver.
func (n *Node) Close() error {
	n.stop()
	return errors.Join(n.conn.Close(), <-n.ended)
}

func handle(s volume.Spec) string { return pv.Handle(s.Group, s.Name, s.ReadOnly) }

// Mount publishes a volume on a directory that the driver creates, or a device on a file.
func (n *Node) Mount(ctx context.Context, s volume.Spec, target string) error {
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	attributes := pv.Attributes(s.Options(), s.Namespace)
	attributes["csi.storage.k8s.io/pod.namespace"] = s.Namespace
	capability := &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: s.FSType.String()}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
	}
	if s.FSType == volume.Raw {
		capability.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	}
	_, err := n.client.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: handle(s), TargetPath: target, VolumeContext: attributes, Secrets: n.Secrets, VolumeCapability: capability,
	})
	return err
}

// Unmount unpublishes a volume and removes the target.
func (n *Node) Unmount(ctx context.Context, s volume.Spec, target string) error {
	_, err := n.client.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: handle(s), TargetPath: target})
	return err
}

// Expand grows a volume that is mounted on target.
func (n *Node) Expand(ctx context.Context, s volume.Spec, target string, size volume.Bytes) error {
	r, err := n.client.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
		VolumeId: handle(s), VolumePath: target, CapacityRange: &csi.CapacityRange{RequiredBytes: int64(size)}, Secrets: n.Secrets,
	})
	if err == nil && r.GetCapacityBytes() < int64(size) {
		return fmt.Errorf("the driver answers %d bytes for a growth to %d", r.GetCapacityBytes(), size)
	}
	return err
}

// now returns the time of the driver's clock.
func (n *Node) now() time.Time { return time.Now().Add(time.Duration(n.ahead.Load())) }

// later advances the driver's clock by a minute: kubelet requests the health no more often.
func (n *Node) later() { n.ahead.Add(int64(time.Minute)) }

// Health returns the problems of a volume, a minute after the previous request.
func (n *Node) Health(ctx context.Context, s volume.Spec) ([]*csi.VolumeHealth_VolumeHealthEntry, error) {
	n.later()
	r, err := n.client.NodeGetVolumeHealth(ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: handle(s)})
	return r.GetVolumeHealth().GetHealthStatuses(), err
}

// StorageHealth returns the problems of the node's pools, a minute after the previous request.
func (n *Node) StorageHealth(ctx context.Context) ([]*csi.NodeGetStorageHealthResponse_StorageBackendHealth, error) {
	n.later()
	r, err := n.client.NodeGetStorageHealth(ctx, &csi.NodeGetStorageHealthRequest{})
	return r.GetBackendHealth(), err
}
