package csicontroller

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Field names of requests, as they appear in messages.
const (
	fieldHandle       = "volume_id"
	fieldCapabilities = "volume_capabilities"
	fieldSecrets      = "secrets"
)

// keyName is the parameter with which CSI's resizer passes the name of the PersistentVolume, if it runs with
// --extra-modify-metadata.
const keyName = "csi.storage.k8s.io/pv/name"

// Volumes is the API of PersistentVolumes, which client-go's client implements.
type Volumes interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.PersistentVolume, error)
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (*corev1.PersistentVolume, error)
	Create(ctx context.Context, object *corev1.PersistentVolume, opts metav1.CreateOptions) (*corev1.PersistentVolume, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
	List(ctx context.Context, opts metav1.ListOptions) (*corev1.PersistentVolumeList, error)
}

// A Service implements CSI's controller service and its group controller service.
type Service struct {
	csi.UnimplementedControllerServer
	csi.UnimplementedGroupControllerServer
	volumes    Volumes
	snapshots  *Snapshots
	unanswered unanswered
}

// New returns the service. If snapshots is nil, it serves none.
func New(volumes Volumes, snapshots *Snapshots) *Service {
	return &Service{volumes: volumes, snapshots: snapshots}
}

// ControllerGetCapabilities returns the calls that are served.
func (s *Service) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	offered := []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_MODIFY_VOLUME}
	if s.snapshots != nil {
		offered = append(offered, csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT, csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS)
	}
	out := &csi.ControllerGetCapabilitiesResponse{}
	for _, one := range offered {
		out.Capabilities = append(out.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: one}},
		})
	}
	return out, nil
}

// ControllerModifyVolume writes the limits to the PersistentVolume. The daemon of its node then applies them
// within a moment, or reports in events that it cannot. A repeated call writes nothing.
func (s *Service) ControllerModifyVolume(ctx context.Context, r *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	switch {
	case r.GetVolumeId() == "":
		return nil, missing(fieldHandle)
	case len(r.GetSecrets()) > 0:
		return nil, refuse(&volume.FieldError{Field: fieldSecrets, Reason: "are not accepted; remove controllerExpandSecretRef from the PersistentVolume"})
	}
	object, err := s.find(ctx, r.GetVolumeId(), r.GetMutableParameters()[keyName])
	if err != nil {
		return nil, err
	}
	limits, err := controlplane.ParseAttributes(r.GetMutableParameters())
	if err != nil {
		return nil, err // has its code
	}
	text := ""
	if _, shared := persistentvolume.Options(object)[volume.OptionDirectoryPool]; shared && !limits.IsZero() {
		return nil, refuse(&volume.FieldError{Field: volume.OptionLayout, Value: string(volume.Directory), Reason: "has no limits on IO: its volumes share one device; use a class with another layout"})
	}
	if !limits.IsZero() {
		text = limits.String()
	}
	if object.Annotations[pv.AnnotationIOLimits] == text {
		return &csi.ControllerModifyVolumeResponse{}, nil
	}
	if err := s.write(ctx, object, text); err != nil {
		return nil, rejected(fmt.Errorf("write the limits of PersistentVolume %q: %w", object.Name, err))
	}
	klog.FromContext(ctx).Info("The limits on IO of a volume were changed", "persistentvolume", object.Name, "limits", text)
	return &csi.ControllerModifyVolumeResponse{}, nil
}

// write sets the annotation, or removes it if there are no limits. It fails if the PersistentVolume has been
// replaced by another one of its name.
func (s *Service) write(ctx context.Context, object *corev1.PersistentVolume, text string) error {
	var value any
	if text != "" {
		value = text
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": object.UID, "annotations": map[string]any{pv.AnnotationIOLimits: value},
	}})
	if err != nil {
		return err
	}
	_, err = s.volumes.Patch(ctx, object.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// find returns the PersistentVolume of a handle. If no name is passed, the name of the volume is used, which is
// also that of its PersistentVolume except for replicas of datasets and PersistentVolumes written by hand.
func (s *Service) find(ctx context.Context, id, name string) (*corev1.PersistentVolume, error) {
	_, n, _, err := pv.ParseHandle(fieldHandle, id)
	if err != nil {
		return nil, status.Error(codes.NotFound, err.Error())
	}
	if name == "" {
		name = string(n)
	}
	object, err := s.volumes.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, status.Errorf(codes.NotFound, "there is no PersistentVolume %q for the volume %s; csi-resizer needs --extra-modify-metadata where the two have different names", name, id)
	case err != nil:
		return nil, fmt.Errorf("get PersistentVolume %q: %w", name, err)
	case persistentvolume.DoorOf(object) != pv.CSI || object.Spec.CSI.VolumeHandle != id:
		return nil, status.Errorf(codes.NotFound, "PersistentVolume %q is not that of the volume %s of the CSI driver %s", name, id, pv.Provisioner)
	}
	return object, nil
}

// ValidateVolumeCapabilities confirms the capabilities with which the node service would mount the volume.
func (s *Service) ValidateVolumeCapabilities(ctx context.Context, r *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	switch {
	case r.GetVolumeId() == "":
		return nil, missing(fieldHandle)
	case len(r.GetVolumeCapabilities()) == 0:
		return nil, missing(fieldCapabilities)
	}
	object, err := s.find(ctx, r.GetVolumeId(), "")
	if err != nil {
		return nil, err
	}
	mode, fsType := persistentvolume.ModeOf(object), persistentvolume.FSType(object)
	for _, c := range r.GetVolumeCapabilities() {
		if why := unfit(c, mode, fsType); why != "" {
			return &csi.ValidateVolumeCapabilitiesResponse{Message: why}, nil
		}
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.GetVolumeContext(), VolumeCapabilities: r.GetVolumeCapabilities(), Parameters: r.GetParameters(), MutableParameters: r.GetMutableParameters(),
	}}, nil
}

// unfit returns why a volume of this mode and file system type does not support a capability; empty if it does.
func unfit(c *csi.VolumeCapability, mode, fsType string) string {
	m := c.GetMount()
	switch {
	case mode == volume.ModeBlock && c.GetBlock() == nil:
		return "the volume is a device, without a file system"
	case mode != volume.ModeBlock && (m == nil || m.GetFsType() != "" && m.GetFsType() != fsType):
		return "the volume holds a file system, and that of type " + fsType
	}
	switch c.GetAccessMode().GetMode() {
	case csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER, csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, csi.VolumeCapability_AccessMode_UNKNOWN:
		return "a volume is on the disk of one node"
	}
	if _, err := volume.ParseMountOptions("mountOptions", m.GetMountFlags()); err != nil {
		return err.Error()
	}
	return ""
}

func missing(field string) error {
	return refuse(&volume.FieldError{Field: field, Reason: "is missing from the request"})
}

func refuse(err error) error { return status.Error(codes.InvalidArgument, err.Error()) }
