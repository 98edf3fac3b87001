package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/test/bench/figure"
)

const (
	csiDriver = "/csi"
	socket    = "/registry/flexlvm.io.sock"
	// The CSI driver's target. The driver removes it when it unmounts, but the FlexVolume driver needs its own to
	// stay.
	csiTarget = "/mnt/csi/mount"
)

// doors compares the two ways to mount an existing volume: a call of the CSI driver, and the program that kubelet
// executes.
func doors() (f figure.Figure, err error) {
	const name = "pvc-existing"
	flex := mountCall(group, name)
	if err := prepareDoors(flex); err != nil {
		return figure.Figure{}, err
	}
	driver := exec.Command(csiDriver, "--node-name=node-1", "--host-namespaces=false", "--socket="+socket, "--log-level=error")
	driver.Stderr = os.Stderr
	if err := driver.Start(); err != nil {
		return figure.Figure{}, err
	}
	defer func() { err = errors.Join(err, driver.Process.Signal(unix.SIGTERM), driver.Wait()) }()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return figure.Figure{}, err
	}
	defer conn.Close()
	client := csi.NewNodeClient(conn)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if _, err := client.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{}, grpc.WaitForReady(true)); err != nil {
		return figure.Figure{}, fmt.Errorf("wait for the CSI driver: %w", err)
	}
	request := publish(name)
	return figure.Compare("mount of an existing volume: a call of the CSI driver ÷ the FlexVolume driver's process", 40, 1.0,
		figure.Side{
			Run: func() error {
				_, err := client.NodePublishVolume(ctx, request)
				return err
			},
			After: func() error {
				_, err := client.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: request.VolumeId, TargetPath: csiTarget})
				return err
			},
		},
		figure.Side{Run: figure.Command(flex...), After: unmount})
}

// prepareDoors creates the volume, and the directories that kubelet would create.
func prepareDoors(flex []string) error {
	for _, dir := range []string{target, "/registry", "/mnt/csi"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := figure.Command(driver, "vg", "create", "--name", group, "/dev/vda")(); err != nil {
		return err
	}
	if err := figure.Command(flex...)(); err != nil {
		return err
	}
	return unmount()
}

// publish returns kubelet's request.
func publish(name string) *csi.NodePublishVolumeRequest {
	return &csi.NodePublishVolumeRequest{
		VolumeId: group + "/" + name, TargetPath: csiTarget,
		VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "xfs"}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		},
		VolumeContext: map[string]string{
			"volumeGroup": group, "size": fmt.Sprint(int64(size)), "kind": string(volume.Claim), "clusterUID": cluster,
			"namespace": "default", "csi.storage.k8s.io/pod.namespace": "default",
		},
	}
}
