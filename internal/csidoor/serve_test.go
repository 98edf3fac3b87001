package csidoor

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// One socket serves the registration, the identity and the node service, and only root can connect.
func TestOneSocket(t *testing.T) {
	d := open(t)
	info, err := os.Lstat(d.socket)
	require.NoError(t, err)
	require.Equal(t, os.ModeSocket|0o600, info.Mode())

	plugin, err := registerapi.NewRegistrationClient(d.conn).GetInfo(t.Context(), &registerapi.InfoRequest{})
	require.NoError(t, err)
	require.Equal(t, []string{"CSIPlugin", "flexlvm.io", d.socket, "1.0.0"}, []string{plugin.GetType(), plugin.GetName(), plugin.GetEndpoint(), plugin.GetSupportedVersions()[0]})
	_, err = registerapi.NewRegistrationClient(d.conn).NotifyRegistrationStatus(t.Context(), &registerapi.RegistrationStatus{PluginRegistered: true})
	require.NoError(t, err)

	identity := csi.NewIdentityClient(d.conn)
	who, err := identity.GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	require.NoError(t, err)
	require.Equal(t, []string{"flexlvm.io", "v9"}, []string{who.GetName(), who.GetVendorVersion()})
	can, err := identity.GetPluginCapabilities(t.Context(), &csi.GetPluginCapabilitiesRequest{})
	require.NoError(t, err)
	require.Len(t, can.GetCapabilities(), 1)
	require.Equal(t, csi.PluginCapability_VolumeExpansion_ONLINE, can.GetCapabilities()[0].GetVolumeExpansion().GetType())
	_, err = identity.Probe(t.Context(), &csi.ProbeRequest{})
	require.NoError(t, err)

	me, err := d.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	require.NoError(t, err)
	require.Equal(t, "node-1", me.GetNodeId())
	require.Nil(t, me.GetAccessibleTopology())
	does, err := d.NodeGetCapabilities(t.Context(), &csi.NodeGetCapabilitiesRequest{})
	require.NoError(t, err)
	require.Len(t, does.GetCapabilities(), 5)
	_, err = d.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{})
	require.Equal(t, codes.Unimplemented, status.Code(err))
	_, err = csi.NewControllerClient(d.conn).CreateVolume(t.Context(), &csi.CreateVolumeRequest{})
	require.Equal(t, codes.Unimplemented, status.Code(err), "no controller on a node's socket")

	d.stop()
	require.NoError(t, <-d.ended)
	require.NoFileExists(t, d.socket, "kubelet is to see that it is away")
}

// The driver's end waits until running calls are answered.
func TestEndWaitsForCalls(t *testing.T) {
	d := open(t)
	begun, goOn := make(chan struct{}), make(chan struct{})
	d.engine.do = func(context.Context) error { close(begun); <-goOn; return nil }
	answered := make(chan error, 1)
	r := publish(t)
	go func() { _, err := d.NodePublishVolume(context.Background(), r); answered <- err }()
	<-begun
	d.stop()
	require.Eventually(t, func() bool { _, err := os.Lstat(d.socket); return os.IsNotExist(err) }, time.Minute, time.Millisecond)
	close(goOn)
	require.NoError(t, <-answered)
	require.NoError(t, <-d.ended)
}

// kubelet refuses a second registration of the driver's name. The process then ends, to be restarted.
func TestRefusedRegistrationEnds(t *testing.T) {
	d := open(t)
	for range 3 {
		_, err := registerapi.NewRegistrationClient(d.conn).NotifyRegistrationStatus(t.Context(), &registerapi.RegistrationStatus{Error: "already registered"})
		if err != nil {
			break // it has ended
		}
	}
	require.ErrorContains(t, <-d.ended, "kubelet does not register the CSI driver: already registered")
	require.NoFileExists(t, d.socket)
}

// A socket that a killed process left is replaced. Another kind of file is not, and a successor's
// socket is not removed.
func TestSocketOfAnother(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "flexlvm.io.sock")
	stale, err := net.Listen("unix", socket)
	require.NoError(t, err)
	stale.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, stale.Close())
	leftover, err := net.Listen("unix", temporaryName(socket))
	require.NoError(t, err)
	leftover.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, leftover.Close())

	d := openAt(t, socket)
	require.Eventually(t, func() bool {
		_, err := d.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
		return err == nil
	}, time.Minute, time.Millisecond)

	successor, err := net.Listen("unix", socket+"2")
	require.NoError(t, err)
	defer successor.Close()
	require.NoError(t, os.Rename(socket+"2", socket))
	d.stop()
	require.NoError(t, <-d.ended)
	_, err = os.Lstat(socket)
	require.NoError(t, err, "it is the successor's")

	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
	for path, says := range map[string]string{
		file:                        "is something else",
		"relative.sock":             "must be absolute",
		filepath.Join(dir, ".sock"): "must not begin with a dot",
		filepath.Join(dir, "no/s"):  "kubelet makes the directory",
	} {
		require.ErrorContains(t, Serve(t.Context(), Config{Socket: path, Node: "n", Log: logrus.New()}, &fakeEngine{}), says)
	}
	require.FileExists(t, file)
}
