package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Whose volumes they are.
const (
	namespace = "sanity"
	cluster   = "6e2c0b0a-92a7-4b52-a9f5-2f7b3f1f8a01"
)

// controller makes, describes and removes volumes.
type controller struct {
	csi.UnimplementedControllerServer
	engine *node.Engine

	mu      sync.Mutex
	volumes map[string]*csi.Volume // by handle
}

func (c *controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	out := &csi.ControllerGetCapabilitiesResponse{}
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

// CreateVolume describes a volume as a PersistentVolume; its first mount makes it.
func (c *controller) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if r.GetName() == "" || len(r.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "a volume has a name and capabilities")
	}
	size := volume.Bytes(max(r.GetCapacityRange().GetRequiredBytes(), int64(64*volume.MiB)))
	spec := volume.Spec{
		Group: volume.DefaultGroup, Name: volume.Name(fmt.Sprintf("pvc-%x", sha256.Sum256([]byte(r.GetName())))), Size: size.RoundUp(volume.Block),
		Layout: volume.Linear, Kind: volume.Claim, Cluster: cluster, Namespace: namespace,
	}
	object := persistentvolume.New(pv.Description{Name: string(spec.Name), Node: "node-1", Hostname: "node-1", Door: pv.CSI, Spec: spec},
		[]corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, corev1.PersistentVolumeReclaimDelete)
	source := object.Spec.CSI
	// As kubelet says it of the pod.
	source.VolumeAttributes["csi.storage.k8s.io/pod.namespace"] = namespace
	made := &csi.Volume{VolumeId: source.VolumeHandle, CapacityBytes: int64(spec.Size), VolumeContext: source.VolumeAttributes}
	c.mu.Lock()
	defer c.mu.Unlock()
	if there := c.volumes[made.GetVolumeId()]; there != nil && there.GetCapacityBytes() != made.GetCapacityBytes() {
		return nil, status.Errorf(codes.AlreadyExists, "volume %s has %d bytes", made.GetVolumeId(), there.GetCapacityBytes())
	}
	c.volumes[made.GetVolumeId()] = made
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
	ref := node.Ref{Group: g, Name: n, Cluster: cluster, Kind: volume.Claim}
	if err := c.engine.Release(ctx, ref, volume.Unreferenced, node.Disposal{Reclaim: volume.ReclaimImmediate, Wipe: volume.WipeNone}); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if err := c.engine.Remove(ctx, ref); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.DeleteVolumeResponse{}, nil
}

func (c *controller) ValidateVolumeCapabilities(_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if r.GetVolumeId() == "" || len(r.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "volume_id or volume_capabilities are missing")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.volumes[r.GetVolumeId()] == nil {
		return nil, status.Errorf(codes.NotFound, "there is no volume %s", r.GetVolumeId())
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.GetVolumeContext(), VolumeCapabilities: r.GetVolumeCapabilities(), Parameters: r.GetParameters(),
	}}, nil
}

// ControllerExpandVolume leaves the growth to the node: room is not reckoned here.
func (c *controller) ControllerExpandVolume(_ context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	if r.GetVolumeId() == "" || r.GetCapacityRange() == nil {
		return nil, status.Error(codes.InvalidArgument, "volume_id or capacity_range are missing")
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: r.GetCapacityRange().GetRequiredBytes(), NodeExpansionRequired: true}, nil
}
