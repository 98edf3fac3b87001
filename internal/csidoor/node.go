package csidoor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/luks"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// An Engine carries out the calls. Every method can be repeated after it was killed at any moment.
type Engine interface {
	Mount(ctx context.Context, spec volume.Spec, r node.MountRequest) error
	// Unmount succeeds if nothing is mounted or target does not exist.
	Unmount(ctx context.Context, target string) error
	ExpandMounted(ctx context.Context, g volume.Group, n volume.Name, path string, size volume.Bytes, key luks.Key) (node.Space, error)
	Space(g volume.Group, n volume.Name, path string) (node.Space, error)
	Inventory(ctx context.Context) (inventory.Inventory, error)
}

// A service implements CSI's node service.
type service struct {
	csi.UnimplementedNodeServer
	engine      Engine
	node        string // the node's name
	inventories *inventoryCache
	now         func() time.Time
}

func (s *service) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	// No topology: a PersistentVolume names its node by a label that every node has.
	return &csi.NodeGetInfoResponse{NodeId: s.node}, nil
}

func (s *service) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	out := &csi.NodeGetCapabilitiesResponse{}
	for _, c := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
		csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH,
	} {
		out.Capabilities = append(out.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: c}},
		})
	}
	return out, nil
}

// NodePublishVolume mounts the volume on the target, a directory that it creates, or the device on a file. The
// mount is the last step: killed before it, the call leaves an empty directory or file.
func (s *service) NodePublishVolume(ctx context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	p, err := parsePublish(r)
	if err != nil {
		return nil, err
	}
	made, err := makeTarget(p.request.Target, p.block)
	if err != nil {
		return nil, err
	}
	if err := s.engine.Mount(ctx, p.spec, p.request); err != nil {
		if made {
			err = errors.Join(err, removeTarget(p.request.Target))
		}
		return nil, err
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// NodeUnpublishVolume requires a handle but does not parse it: the mount itself identifies the volume, and
// nothing must keep a pod from terminating.
func (s *service) NodeUnpublishVolume(ctx context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	switch target := r.GetTargetPath(); {
	case r.GetVolumeId() == "":
		return nil, missingError(fieldHandle)
	case target == "":
		return nil, missingError(fieldTarget)
	case !filepath.IsAbs(target):
		return nil, &volume.FieldError{Field: fieldTarget, Value: target, Reason: "is not an absolute path"}
	}
	if err := s.engine.Unmount(ctx, r.GetTargetPath()); err != nil {
		return nil, err
	}
	if err := removeTarget(r.GetTargetPath()); err != nil {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// makeTarget creates the directory that a volume is mounted on, or the file for a device, in an existing
// directory.
func makeTarget(path string, file bool) (made bool, err error) {
	if !filepath.IsAbs(path) {
		return false, &volume.FieldError{Field: fieldTarget, Value: path, Reason: "is not an absolute path"}
	}
	if file {
		var f *os.File
		if f, err = os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o640); err == nil {
			err = f.Close()
		}
	} else {
		err = os.Mkdir(path, 0o750)
	}
	if err == nil || errors.Is(err, os.ErrExist) {
		return err == nil, nil
	}
	return false, fmt.Errorf("make the mount target: %w", err)
}

// removeTarget removes an empty directory or an empty file, but nothing else.
func removeTarget(path string) error {
	info, err := os.Lstat(path)
	if err == nil && info.Mode().IsRegular() && info.Size() == 0 {
		err = unix.Unlink(path)
	} else if err == nil {
		err = unix.Rmdir(path)
	}
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return fmt.Errorf("remove the mount target %s: %w", path, err)
}

// NodeExpandVolume grows a volume where it is mounted. The provisioner decided how far the volume may grow when
// it raised the capacity of the PersistentVolume.
func (s *service) NodeExpandVolume(ctx context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	size := volume.Bytes(r.GetCapacityRange().GetRequiredBytes())
	limit := volume.Bytes(r.GetCapacityRange().GetLimitBytes())
	switch {
	case r.GetVolumeId() == "":
		return nil, missingError(fieldHandle)
	case r.GetVolumePath() == "":
		return nil, missingError(fieldPath)
	case size < 0 || size > volume.MaxSize || limit < 0 || limit > 0 && limit < size:
		return nil, &volume.FieldError{Field: "capacity_range", Value: r.GetCapacityRange().String(), Reason: fmt.Sprintf("is no size that a volume can have; the most is %s", volume.MaxSize)}
	}
	h, err := parseHandle(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	var space node.Space
	if h.readers { // a replica grows through the claim of its loader
		space, err = s.engine.Space(h.group, h.name, r.GetVolumePath())
	} else {
		space, err = s.expand(ctx, h, r, size)
	}
	if err != nil {
		return nil, err
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: int64(space.Size)}, nil
}

func (s *service) expand(ctx context.Context, h handle, r *csi.NodeExpandVolumeRequest, size volume.Bytes) (node.Space, error) {
	key, err := keyFrom(r.GetSecrets())
	if err != nil {
		return node.Space{}, err
	}
	space, err := s.engine.ExpandMounted(ctx, h.group, h.name, r.GetVolumePath(), size, key)
	if err != nil {
		return node.Space{}, growthError(err)
	}
	return space, nil
}

// NodeGetVolumeStats returns the usage as df shows it, or the size of a device.
func (s *service) NodeGetVolumeStats(_ context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	if r.GetVolumeId() != "" && r.GetVolumePath() == "" {
		return nil, missingError(fieldPath)
	}
	h, err := parseHandle(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	space, err := s.engine.Space(h.group, h.name, r.GetVolumePath())
	if err != nil {
		return nil, err
	}
	if space.Block {
		return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: int64(space.Size)}}}, nil
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: int64(space.Size), Used: int64(space.Used), Available: int64(space.Free)},
		{Unit: csi.VolumeUsage_INODES, Total: space.Inodes, Used: space.InodesUsed, Available: space.InodesFree},
	}}, nil
}
