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

// Reasons of what is wrong, for programs.
const (
	reasonDegraded      = "CopiesMissing"
	reasonProblem       = "NeedsAttention"
	reasonDeviceMissing = "DeviceMissing"
	reasonPoolFull      = "PoolFull"
	reasonPoolUnfit     = "PoolUnfit"
)

// NodeGetVolumeHealth returns what LVM knows of a volume, or knew at most inventoryLife ago.
func (s *service) NodeGetVolumeHealth(ctx context.Context, r *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	h, err := parseHandle(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	asked := s.now()
	in, err := s.inventories.since(ctx, asked.Add(-inventoryLife))
	if err != nil {
		return nil, err
	}
	i := h.in(in)
	if i < 0 { // it may be younger
		if in, err = s.inventories.since(ctx, asked); err != nil {
			return nil, err
		}
		i = h.in(in)
	}
	if i < 0 {
		return nil, notSeen(in, h)
	}
	v := in.Volumes[i]
	out := &csi.VolumeHealth{VolumeId: r.GetVolumeId()}
	add := func(what csi.VolumeHealthErrorType, reason, message string) {
		out.HealthStatuses = append(out.HealthStatuses, &csi.VolumeHealth_VolumeHealthEntry{Status: what, Reason: reason, Message: message})
	}
	switch {
	case v.Degraded:
		add(csi.VolumeHealthErrorType_DEGRADED, reasonDegraded, v.Problem)
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

// in returns the place of the handle's volume in an inventory; negative if it is not there.
func (h handle) in(in inventory.Inventory) int {
	return slices.IndexFunc(in.Volumes, func(v inventory.Volume) bool { return v.Group == h.group && v.Name == h.name })
}

// notSeen is the error for a volume that is not in the inventory.
func notSeen(in inventory.Inventory, h handle) error {
	for _, p := range in.Pools {
		if p.Unseen() && p.Name.Group() == h.group {
			return status.Errorf(codes.Unavailable, "volume %s/%s is not seen, and directory pool %s cannot be looked into: %s", h.group, h.name, p.Name, p.Directories.Unfit)
		}
	}
	return status.Errorf(codes.NotFound, "this node has no volume %s/%s", h.group, h.name)
}

// NodeGetStorageHealth returns what is wrong with the node's pools, or was at most inventoryLife ago.
func (s *service) NodeGetStorageHealth(ctx context.Context, r *csi.NodeGetStorageHealthRequest) (*csi.NodeGetStorageHealthResponse, error) {
	if len(r.GetSecrets()) > 0 {
		return nil, &volume.FieldError{Field: "secrets", Reason: "are not accepted"}
	}
	in, err := s.inventories.since(ctx, s.now().Add(-inventoryLife))
	if err != nil {
		return nil, err
	}
	return &csi.NodeGetStorageHealthResponse{BackendHealth: poolsHealth(flexlvmPools(in))}, nil
}

// flexlvmPools returns the pools that hold flexlvm's volumes; others of the host are not reported.
func flexlvmPools(in inventory.Inventory) []inventory.Pool {
	ours := map[volume.PoolName]bool{}
	for _, v := range in.Volumes {
		ours[v.Pool()], ours[volume.PoolOf(v.Group, "")] = true, true
	}
	return slices.DeleteFunc(slices.Clone(in.Pools), func(p inventory.Pool) bool { return !ours[p.Name] && p.Directories == nil })
}

// poolsHealth has one entry for each reason, which names the pools that it is true of.
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
			add(reasonDeviceMissing, fmt.Sprintf("pool %s lacks %s that LVM cannot find: look at `vgs` and `pvs`", p.Name, volume.Pluralize(p.Missing, "device", "devices")))
		}
		if p.Exported {
			add(reasonPoolUnfit, fmt.Sprintf("pool %s: its volume group is exported, so no pod can mount its volumes until `vgimport %s`", p.Name, p.Name.Group()))
		}
		if p.Directories != nil && p.Directories.Unfit != "" {
			add(reasonPoolUnfit, fmt.Sprintf("pool %s: %s", p.Name, p.Directories.Unfit))
		}
		if p.Thin == nil {
			continue // what a group has left matters to new volumes alone
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

// fullPercent is how full a thin pool is, of data or metadata, that is said to be full: what
// is written to its volumes fails when nothing is left.
const fullPercent = 95

// fullness says that a thin pool is nearly full, or is empty.
func fullness(p inventory.Pool) string {
	if p.Thin == nil || !p.Thin.Known {
		return ""
	}
	switch {
	case percent(p.Size-p.Free, p.Size) >= fullPercent:
		return fmt.Sprintf("thin pool %s has %s left of %s: writes to its volumes fail when it is full; extend it, or delete claims", p.Name, p.Free, p.Size)
	case percent(p.Thin.MetadataUsed, p.Thin.Metadata) >= fullPercent:
		return fmt.Sprintf("the metadata of thin pool %s is %d %% full: writes to its volumes fail when nothing is left; extend it with `lvextend --poolmetadatasize`", p.Name, percent(p.Thin.MetadataUsed, p.Thin.Metadata))
	}
	return ""
}

func percent(part, whole volume.Bytes) int64 {
	if whole <= 0 {
		return 0
	}
	return int64(float64(part) / float64(whole) * 100)
}
