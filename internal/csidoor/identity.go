package csidoor

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/flexlvm/flexlvm/internal/pv"
)

// identity implements CSI's identity service.
type identity struct {
	csi.UnimplementedIdentityServer
	version string
}

func (i *identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: pv.Provisioner, VendorVersion: i.version}, nil
}

func (i *identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{
		Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{
			Type: csi.PluginCapability_VolumeExpansion_ONLINE,
		}},
	}}}, nil
}

func (i *identity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil // an empty response means ready
}

// registration implements kubelet's plugin registration. kubelet waits one second for a response.
type registration struct {
	registerapi.UnimplementedRegistrationServer
	endpoint string
	status   func(*registerapi.RegistrationStatus)
}

// supportedVersion is the CSI version as kubelet knows it: it does not distinguish versions 1.x.
const supportedVersion = "1.0.0"

func (r *registration) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: registerapi.CSIPlugin, Name: pv.Provisioner, Endpoint: r.endpoint, SupportedVersions: []string{supportedVersion}}, nil
}

func (r *registration) NotifyRegistrationStatus(_ context.Context, status *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	r.status(status)
	return &registerapi.RegistrationStatusResponse{}, nil
}
