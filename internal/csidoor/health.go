package csidoor

import (
	"context"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Reasons that health reports give for programs.
const (
	reasonDegraded      = "CopiesMissing"
	reasonProblem       = "NeedsAttention"
	reasonCopied        = "GroupCopied"
	reasonDeviceMissing = "DeviceMissing"
	reasonPoolFull      = "PoolFull"
	reasonPoolUnfit     = "PoolUnfit"
)

// NodeGetVolumeHealth returns the health of a volume from an LVM inventory that is at most inventoryLife old.
func (s *service) NodeGetVolumeHealth(ctx context.Context, r *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	h, err := parseHandle(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	asked := s.now()
	in, err := s.inventories.notOlderThan(ctx, asked.Add(-inventoryLife))
	if err != nil {
		return nil, err
	}
	i := h.indexIn(in)
	if i < 0 { // the volume may be newer than the inventory
		if in, err = s.inventories.notOlderThan(ctx, asked); err != nil {
			return nil, err
		}
		i = h.indexIn(in)
	}
	if i < 0 {
		return nil, unseenError(in, h)
	}
	v := in.Volumes[i]
	out := &csi.VolumeHealth{VolumeId: r.GetVolumeId()}
	add := func(what csi.VolumeHealthErrorType, reason, message string) {
		out.HealthStatuses = append(out.HealthStatuses, &csi.VolumeHealth_VolumeHealthEntry{Status: what, Reason: reason, Message: message})
	}
	switch {
	case v.Degraded:
		add(csi.VolumeHealthErrorType_DEGRADED, reasonDegraded, v.Problem)
	case v.Copied:
		add(csi.VolumeHealthErrorType_DEGRADED, reasonCopied, v.Problem)
	case v.Problem != "":
		add(csi.VolumeHealthErrorType_INACCESSIBLE, reasonProblem, v.Problem)
	}
	for _, pool := range in.Pools {
		if pool.Name == v.Pool() && pool.Thin != nil {
			if full := fullness(pool); full != "" {
				add(csi.VolumeHealthErrorType_DEGRADED, reasonPoolFull, full)
			}
		}
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: out}, nil
}

// indexIn returns the index of the handle's volume in an inventory, or a negative number if it is not there.
func (h handle) indexIn(in inventory.Inventory) int {
	return slices.IndexFunc(in.Volumes, func(v inventory.Volume) bool { return v.Group == h.group && v.Name == h.name })
}

// unseenError returns the error for a volume that is not in the inventory.
func unseenError(in inventory.Inventory, h handle) error {
	for _, p := range in.Pools {
		if p.VolumesUnknown() && p.Name.Group() == h.group {
			return status.Errorf(codes.Unavailable, "volume %s/%s is not seen, and directory pool %s cannot be read: %s", h.group, h.name, p.Name, p.Directories.Unfit)
		}
	}
	return status.Errorf(codes.NotFound, "this node has no volume %s/%s", h.group, h.name)
}

// NodeGetStorageHealth returns the problems of the node's pools from an inventory that is at most inventoryLife
// old.
func (s *service) NodeGetStorageHealth(ctx context.Context, r *csi.NodeGetStorageHealthRequest) (*csi.NodeGetStorageHealthResponse, error) {
	if len(r.GetSecrets()) > 0 {
		return nil, &volume.FieldError{Field: "secrets", Reason: "are not accepted"}
	}
	in, err := s.inventories.notOlderThan(ctx, s.now().Add(-inventoryLife))
	if err != nil {
		return nil, err
	}
	return &csi.NodeGetStorageHealthResponse{BackendHealth: poolsHealth(flexlvmPools(in))}, nil
}

// flexlvmPools returns the pools that hold flexlvm's volumes. Other pools of the host are not reported.
func flexlvmPools(in inventory.Inventory) []inventory.Pool {
	ours := map[volume.PoolName]bool{}
	for _, v := range in.Volumes {
		ours[v.Pool()], ours[volume.PoolOf(v.Group, "")] = true, true
	}
	return slices.DeleteFunc(slices.Clone(in.Pools), func(p inventory.Pool) bool { return !ours[p.Name] && p.Directories == nil })
}

// poolsHealth returns one entry for each reason, which names the pools that it applies to.
func poolsHealth(pools []inventory.Pool) []*csi.NodeGetStorageHealthResponse_StorageBackendHealth {
	var out []*csi.NodeGetStorageHealthResponse_StorageBackendHealth
	add := func(reason, message string) {
		i := slices.IndexFunc(out, func(h *csi.NodeGetStorageHealthResponse_StorageBackendHealth) bool { return h.GetReason() == reason })
		if i >= 0 {
			out[i].Message += "; " + message
			return
		}
		out = append(out, &csi.NodeGetStorageHealthResponse_StorageBackendHealth{
			Status: csi.StorageHealthErrorType_STORAGE_DEGRADED, Reason: reason, Message: message,
		})
	}
	for _, p := range pools {
		if p.Missing > 0 {
			add(reasonDeviceMissing, fmt.Sprintf("pool %s lacks %s that LVM cannot find: check `vgs` and `pvs`", p.Name, volume.Pluralize(p.Missing, "device", "devices")))
		}
		if p.Exported {
			add(reasonPoolUnfit, fmt.Sprintf("pool %s: its volume group is exported, so no pod can mount its volumes until `vgimport %s`", p.Name, p.Name.Group()))
		}
		if p.Directories != nil && p.Directories.Unfit != "" {
			add(reasonPoolUnfit, fmt.Sprintf("pool %s: %s", p.Name, p.Directories.Unfit))
		}
		if p.Thin == nil {
			continue // free space in a group matters only to new volumes
		}
		if full := fullness(p); full != "" {
			add(reasonPoolFull, full)
		}
		if p.Thin.Unfit != "" {
			add(reasonPoolUnfit, fmt.Sprintf("pool %s: %s", p.Name, p.Thin.Unfit))
		}
	}
	return out
}

// fullPercent is the usage of a thin pool's data or metadata from which the pool is reported as full. Writes to
// its volumes fail once nothing is left.
const fullPercent = 95

// fullness describes a thin pool that is nearly full; it returns an empty string for any other.
func fullness(p inventory.Pool) string {
	if p.Thin == nil || !p.Thin.Known {
		return ""
	}
	switch {
	case volume.Percent(p.Size-p.Free, p.Size) >= fullPercent:
		return fmt.Sprintf("thin pool %s has %s left of %s: writes to its volumes fail when it is full; extend it, or delete claims", p.Name, p.Free, p.Size)
	case volume.Percent(p.Thin.MetadataUsed, p.Thin.Metadata) >= fullPercent:
		return fmt.Sprintf("the metadata of thin pool %s is %d %% full: writes to its volumes fail when nothing is left; extend it with `lvextend --poolmetadatasize`", p.Name, volume.Percent(p.Thin.MetadataUsed, p.Thin.Metadata))
	}
	return ""
}
