package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/csicontroller"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// The owner of all volumes.
const (
	namespace = "sanity"
	cluster   = "6e2c0b0a-92a7-4b52-a9f5-2f7b3f1f8a01"
)

// controller creates, describes and removes volumes. Everything else is the provisioner's own controller service,
// with an in-memory API server.
type controller struct {
	*csicontroller.Service
	engine *node.Engine
	server kubernetes.Interface

	mu      sync.Mutex
	volumes map[string]*csi.Volume // by handle
}

func newController(engine *node.Engine) *controller {
	server := fake.NewClientset()
	server.PrependReactor("create", "persistentvolumes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		a.(clienttesting.CreateAction).GetObject().(*corev1.PersistentVolume).UID = uuid.NewUUID() // as the API server does
		return false, nil, nil
	})
	snapshots := &csicontroller.Snapshots{Room: room{}, Now: time.Now, Seen: func(name string) (*corev1.PersistentVolume, error) {
		return server.CoreV1().PersistentVolumes().Get(context.Background(), name, metav1.GetOptions{})
	}}
	c := &controller{
		Service: csicontroller.New(server.CoreV1().PersistentVolumes(), snapshots), engine: engine, server: server, volumes: map[string]*csi.Volume{},
	}
	go c.takeSnapshots(context.Background())
	return c
}

// ControllerGetCapabilities adds the capabilities that controller implements to those of the service.
func (c *controller) ControllerGetCapabilities(ctx context.Context, r *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	out, err := c.Service.ControllerGetCapabilities(ctx, r)
	if err != nil {
		return nil, err
	}
	for _, can := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		out.Capabilities = append(out.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: can}},
		})
	}
	return out, nil
}

// CreateVolume describes a volume as a PersistentVolume; the first mount creates the volume.
func (c *controller) CreateVolume(ctx context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if r.GetName() == "" || len(r.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "a volume has a name and capabilities")
	}
	limits, err := controlplane.ParseAttributes(r.GetMutableParameters())
	if err != nil {
		return nil, err
	}
	size := volume.Bytes(max(r.GetCapacityRange().GetRequiredBytes(), int64(64*volume.MiB)))
	spec := volume.Spec{
		Group: volume.DefaultGroup, Name: volume.Name(fmt.Sprintf("pvc-%x", sha256.Sum256([]byte(r.GetName())))), Size: size.RoundUp(volume.Block),
		Layout: volume.Linear, Kind: volume.Claim, Cluster: cluster, Namespace: namespace,
	}
	if r.GetVolumeCapabilities()[0].GetBlock() != nil {
		spec.FSType = volume.Raw
	}
	if from := r.GetVolumeContentSource().GetSnapshot(); from != nil {
		if err := c.restore(ctx, from.GetSnapshotId(), &spec); err != nil {
			return nil, err
		}
	}
	object := persistentvolume.New(pv.Description{Name: string(spec.Name), Node: "node-1", Hostname: "node-1", Door: pv.CSI, Spec: spec, Charged: spec.Charge(), IOLimits: limits},
		[]corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, corev1.PersistentVolumeReclaimDelete)
	source := object.Spec.CSI.DeepCopy()
	// As kubelet adds it for the pod.
	source.VolumeAttributes["csi.storage.k8s.io/pod.namespace"] = namespace
	made := &csi.Volume{VolumeId: source.VolumeHandle, CapacityBytes: int64(spec.Size), VolumeContext: source.VolumeAttributes, ContentSource: r.GetVolumeContentSource()}
	c.mu.Lock()
	defer c.mu.Unlock()
	if there := c.volumes[made.GetVolumeId()]; there != nil && there.GetCapacityBytes() != made.GetCapacityBytes() {
		return nil, status.Errorf(codes.AlreadyExists, "volume %s has %d bytes", made.GetVolumeId(), there.GetCapacityBytes())
	}
	c.volumes[made.GetVolumeId()] = made
	if _, err := c.server.CoreV1().PersistentVolumes().Create(ctx, object, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.CreateVolumeResponse{Volume: made}, nil
}

// DeleteVolume releases a volume and removes it.
func (c *controller) DeleteVolume(ctx context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	}
	g, n, _, err := pv.ParseHandle("volume_id", r.GetVolumeId())
	c.mu.Lock()
	known := c.volumes[r.GetVolumeId()] != nil
	delete(c.volumes, r.GetVolumeId())
	c.mu.Unlock()
	if err != nil || !known {
		return &csi.DeleteVolumeResponse{}, nil // there is none
	}
	if err := c.server.CoreV1().PersistentVolumes().Delete(ctx, string(n), metav1.DeleteOptions{}); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	ref := node.Ref{Group: g, Name: n, Cluster: cluster, Kind: volume.Claim}
	if err := c.engine.Release(ctx, ref, volume.Unreferenced, volume.Disposal{Reclaim: volume.ReclaimImmediate, Wipe: volume.WipeNone}); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.DeleteVolumeResponse{}, c.removeUnreferenced(ctx)
}

// ControllerExpandVolume leaves growing to the node: free space is not checked here.
func (c *controller) ControllerExpandVolume(_ context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	if r.GetVolumeId() == "" || r.GetCapacityRange() == nil {
		return nil, status.Error(codes.InvalidArgument, "volume_id or capacity_range are missing")
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: r.GetCapacityRange().GetRequiredBytes(), NodeExpansionRequired: true}, nil
}
