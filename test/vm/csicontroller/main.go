// Command csicontroller replaces the provisioner and the node daemon where there is no Kubernetes, so that CSI's
// own tests have volumes to work on. It is a CSI controller service that names and describes volumes as the
// provisioner does, and removes them as the daemon does. It answers what the provisioner's own controller service
// offers, and forwards calls of the node service to the driver.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/flexlvm/flexlvm/internal/node"
)

func main() {
	listen := flag.String("listen", "", "the socket to serve")
	driver := flag.String("driver", "", "the socket of the driver")
	flag.Parse()
	if err := run(*listen, *driver); err != nil {
		fmt.Fprintln(os.Stderr, "csicontroller:", err)
		os.Exit(1)
	}
}

func run(listen, driver string) error {
	engine, err := node.OnHost(logrus.New())
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("unix://"+driver, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	listener, err := net.Listen("unix", listen)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, &identity{driver: csi.NewIdentityClient(conn)})
	controller := newController(engine)
	csi.RegisterControllerServer(server, controller)
	csi.RegisterGroupControllerServer(server, controller)
	csi.RegisterNodeServer(server, &nodes{driver: csi.NewNodeClient(conn)})
	return errors.Join(server.Serve(listener), conn.Close())
}

// identity is the driver's identity service plus the capability of controller services.
type identity struct {
	csi.UnimplementedIdentityServer
	driver csi.IdentityClient
}

func (i *identity) GetPluginInfo(ctx context.Context, r *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return i.driver.GetPluginInfo(ctx, r)
}

func (i *identity) Probe(ctx context.Context, r *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return i.driver.Probe(ctx, r)
}

func (i *identity) GetPluginCapabilities(ctx context.Context, r *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	out, err := i.driver.GetPluginCapabilities(ctx, r)
	if err != nil {
		return nil, err
	}
	for _, one := range []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE, csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE} {
		out.Capabilities = append(out.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{
			Service: &csi.PluginCapability_Service{Type: one},
		}})
	}
	return out, nil
}

// nodes forwards all calls to the driver.
type nodes struct {
	csi.UnimplementedNodeServer
	driver csi.NodeClient
}

func (n *nodes) NodePublishVolume(ctx context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	return n.driver.NodePublishVolume(ctx, r)
}

func (n *nodes) NodeUnpublishVolume(ctx context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return n.driver.NodeUnpublishVolume(ctx, r)
}

func (n *nodes) NodeExpandVolume(ctx context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	return n.driver.NodeExpandVolume(ctx, r)
}

func (n *nodes) NodeGetVolumeStats(ctx context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	return n.driver.NodeGetVolumeStats(ctx, r)
}

func (n *nodes) NodeGetVolumeHealth(ctx context.Context, r *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	return n.driver.NodeGetVolumeHealth(ctx, r)
}

func (n *nodes) NodeGetStorageHealth(ctx context.Context, r *csi.NodeGetStorageHealthRequest) (*csi.NodeGetStorageHealthResponse, error) {
	return n.driver.NodeGetStorageHealth(ctx, r)
}

func (n *nodes) NodeGetCapabilities(ctx context.Context, r *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return n.driver.NodeGetCapabilities(ctx, r)
}

func (n *nodes) NodeGetInfo(ctx context.Context, r *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return n.driver.NodeGetInfo(ctx, r)
}

func (n *nodes) NodeStageVolume(ctx context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	return n.driver.NodeStageVolume(ctx, r)
}

func (n *nodes) NodeUnstageVolume(ctx context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return n.driver.NodeUnstageVolume(ctx, r)
}
