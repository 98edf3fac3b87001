package csicontroller_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/flexlvm/flexlvm/internal/csicontroller"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// made returns a PersistentVolume as the provisioner creates it.
func made(name string, of volume.Name, door pv.Door, limits volume.IOLimits) *corev1.PersistentVolume {
	spec := volume.Spec{Group: "flexlvm", Name: of, Size: volume.GiB, Layout: volume.Linear, Kind: volume.Claim, Namespace: "shop"}
	return persistentvolume.New(pv.Description{Name: name, Node: "node-1", Hostname: "node-1", Door: door, Spec: spec, IOLimits: limits},
		[]corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, corev1.PersistentVolumeReclaimDelete)
}

// A bed is a controller service on a socket, with a fake API server.
type bed struct {
	*fake.Clientset
	conn   *grpc.ClientConn
	socket string
	csi.ControllerClient
}

func serve(t *testing.T, objects ...runtime.Object) *bed {
	t.Helper()
	b := serveAs(t, csicontroller.Config{}, objects...)
	_, err := b.ControllerGetCapabilities(t.Context(), &csi.ControllerGetCapabilitiesRequest{})
	require.NoError(t, err)
	info, err := os.Stat(b.socket)
	require.NoError(t, err)
	require.Equal(t, os.ModeSocket|0o600, info.Mode(), "for its pod's user alone")
	return b
}

func serveAs(t *testing.T, cfg csicontroller.Config, objects ...runtime.Object) *bed {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "csi.sock")
	b := &bed{Clientset: fake.NewClientset(objects...), socket: socket}
	killed, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket}) // as a killed process leaves one
	require.NoError(t, err)
	killed.SetUnlinkOnClose(false)
	require.NoError(t, killed.Close())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	cfg.Socket, cfg.Version, cfg.Volumes = socket, "v9", b.CoreV1().PersistentVolumes()
	go func() { ended <- csicontroller.Serve(ctx, cfg) }()
	b.conn, err = grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	require.NoError(t, err)
	b.ControllerClient = csi.NewControllerClient(b.conn)
	t.Cleanup(func() {
		require.NoError(t, b.conn.Close())
		cancel()
		require.NoError(t, <-ended)
		require.NoFileExists(t, socket)
	})
	return b
}

// While this replica is not the leader, the sidecar's calls fail as Unavailable; neither the sidecar
// nor the connection ends.
func TestServeBeforeThisProcessWorks(t *testing.T) {
	gate := &csicontroller.Gate{}
	b := serveAs(t, csicontroller.Config{Snapshots: &csicontroller.Snapshots{}, Gate: gate})
	who := csi.NewIdentityClient(b.conn)
	info, err := who.GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	require.NoError(t, err)
	require.Equal(t, pv.Provisioner, info.Name)
	ready := func() bool {
		out, err := who.Probe(t.Context(), &csi.ProbeRequest{})
		require.NoError(t, err)
		return out.Ready.GetValue()
	}
	require.False(t, ready())
	create := &csi.CreateSnapshotRequest{SourceVolumeId: "flexlvm/pvc-1", Name: "snapshot-1"}
	_, err = b.CreateSnapshot(t.Context(), create)
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	require.ErrorContains(t, err, "is not the leader; another replica serves the request")
	require.Empty(t, b.Actions())

	ctx, giveUp := context.WithCancel(t.Context())
	let, looked := make(chan struct{}), make(chan struct{})
	first := sync.OnceFunc(func() { close(looked) })
	b.PrependReactor("get", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
		first()
		<-let
		return false, nil, nil
	})
	ended := make(chan struct{})
	go func() {
		gate.Open(ctx)
		close(ended)
	}()
	require.Eventually(t, ready, time.Minute, time.Millisecond)
	called := make(chan error, 1)
	go func() {
		_, err := b.CreateSnapshot(t.Context(), create)
		called <- err
	}()
	<-looked
	// The lease is kept until the call has ended, and no other is let in.
	giveUp()
	require.Eventually(t, func() bool { return !ready() }, time.Minute, time.Millisecond)
	select {
	case <-ended:
		require.Fail(t, "the gate has closed before the call has ended")
	case <-time.After(50 * time.Millisecond):
	}
	close(let)
	require.Equal(t, codes.NotFound, status.Code(<-called), "it was let in, and there is no such volume")
	<-ended
	_, err = b.CreateSnapshot(t.Context(), create)
	require.ErrorContains(t, err, "is not the leader; another replica serves the request")
}

func (b *bed) modify(t *testing.T, id string, parameters map[string]string) error {
	t.Helper()
	_, err := b.ControllerModifyVolume(t.Context(), &csi.ControllerModifyVolumeRequest{VolumeId: id, MutableParameters: parameters})
	return err
}

func (b *bed) annotations(t *testing.T, name string) map[string]string {
	t.Helper()
	object, err := b.CoreV1().PersistentVolumes().Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return object.Annotations
}

func (b *bed) writes() (n int) {
	for _, a := range b.Actions() {
		if a.GetVerb() == "patch" {
			n++
		}
	}
	return n
}

func TestModify(t *testing.T) {
	b := serve(t, made("pvc-1", "pvc-1", pv.CSI, volume.IOLimits{ReadBps: volume.MiB}), made("other", "pvc-2", pv.CSI, volume.IOLimits{}))
	const one = "flexlvm/pvc-1"
	before := b.annotations(t, "pvc-1")
	require.Equal(t, "rbps=1048576 wbps=max riops=max wiops=max", before[pv.AnnotationIOLimits])

	// Limits that the change does not name are removed, and nothing but the limits changes.
	require.NoError(t, b.modify(t, one, map[string]string{"writeBps": "2Mi", "readIops": "500"}))
	after := b.annotations(t, "pvc-1")
	require.Equal(t, "rbps=max wbps=2097152 riops=500 wiops=max", after[pv.AnnotationIOLimits])
	delete(before, pv.AnnotationIOLimits)
	delete(after, pv.AnnotationIOLimits)
	require.Equal(t, before, after)
	require.Equal(t, 1, b.writes())

	require.NoError(t, b.modify(t, one, map[string]string{"writeBps": "2048Ki", "readIops": "500"}))
	require.Equal(t, 1, b.writes(), "the same again")

	require.NoError(t, b.modify(t, one, map[string]string{"writeBps": "max"}))
	require.NotContains(t, b.annotations(t, "pvc-1"), pv.AnnotationIOLimits)
	require.NoError(t, b.modify(t, one, nil))
	require.Equal(t, 2, b.writes())

	// A PersistentVolume whose name differs from its volume's is found if the call brings its name.
	require.Equal(t, codes.NotFound, status.Code(b.modify(t, "flexlvm/pvc-2", map[string]string{"readIops": "7"})))
	require.NoError(t, b.modify(t, "flexlvm/pvc-2", map[string]string{"readIops": "7", "csi.storage.k8s.io/pv/name": "other", "csi.storage.k8s.io/pvc/name": "data"}))
	require.Equal(t, "rbps=max wbps=max riops=7 wiops=max", b.annotations(t, "other")[pv.AnnotationIOLimits])
	// The name does not give access to another volume.
	require.Equal(t, codes.NotFound, status.Code(b.modify(t, one, map[string]string{"readIops": "9", "csi.storage.k8s.io/pv/name": "other"})))
	require.Equal(t, "rbps=max wbps=max riops=7 wiops=max", b.annotations(t, "other")[pv.AnnotationIOLimits])
}

func TestModifyRefuses(t *testing.T) {
	foreign := made("pvc-4", "pvc-4", pv.CSI, volume.IOLimits{})
	foreign.Spec.CSI.Driver = "example.org"
	b := serve(t, made("pvc-1", "pvc-1", pv.CSI, volume.IOLimits{}), made("pvc-3", "pvc-3", pv.Flex, volume.IOLimits{}), foreign)
	for name, tt := range map[string]struct {
		request *csi.ControllerModifyVolumeRequest
		code    codes.Code
		says    string
	}{
		"no volume":            {&csi.ControllerModifyVolumeRequest{}, codes.InvalidArgument, "volume_id: is missing"},
		"secrets":              {&csi.ControllerModifyVolumeRequest{VolumeId: "flexlvm/pvc-1", Secrets: map[string]string{"key": "s3cret"}}, codes.InvalidArgument, "secrets: are not accepted"},
		"not a handle":         {&csi.ControllerModifyVolumeRequest{VolumeId: "pvc-1"}, codes.NotFound, `volume_id "pvc-1": is not the handle`},
		"not there":            {&csi.ControllerModifyVolumeRequest{VolumeId: "flexlvm/pvc-9"}, codes.NotFound, `there is no PersistentVolume "pvc-9"`},
		"another group":        {&csi.ControllerModifyVolumeRequest{VolumeId: "fast/pvc-1"}, codes.NotFound, `"pvc-1" is not that of the volume fast/pvc-1`},
		"a FlexVolume":         {&csi.ControllerModifyVolumeRequest{VolumeId: "flexlvm/pvc-3"}, codes.NotFound, `"pvc-3" is not that of the volume`},
		"of another driver":    {&csi.ControllerModifyVolumeRequest{VolumeId: "flexlvm/pvc-4"}, codes.NotFound, `"pvc-4" is not that of the volume`},
		"a value":              {&csi.ControllerModifyVolumeRequest{VolumeId: "flexlvm/pvc-1", MutableParameters: map[string]string{"writeBps": "fast"}}, codes.InvalidArgument, `writeBps "fast": is not a rate; give bytes per second`},
		"an unknown name":      {&csi.ControllerModifyVolumeRequest{VolumeId: "flexlvm/pvc-1", MutableParameters: map[string]string{"iops": "1"}}, codes.InvalidArgument, `unknown parameter "iops"`},
		"one that is no limit": {&csi.ControllerModifyVolumeRequest{VolumeId: "flexlvm/pvc-1", MutableParameters: map[string]string{"readBps": "1Mi", "reclaim": "lazy"}}, codes.InvalidArgument, `unknown parameter "reclaim"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := b.ControllerModifyVolume(t.Context(), tt.request)
			require.Equal(t, tt.code, status.Code(err), err)
			require.ErrorContains(t, err, tt.says)
			require.NotContains(t, err.Error(), "s3cret")
		})
	}
	require.Zero(t, b.writes())
}

// The code reports whether retrying the change can help.
func TestModifyWhenTheServerSaysNo(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		code codes.Code
	}{
		"away":      {errors.New("connection refused"), codes.Unavailable},
		"forbidden": {apierrors.NewForbidden(corev1.Resource("persistentvolumes"), "pvc-1", errors.New("no claim is bound to it")), codes.FailedPrecondition},
		"made anew": {apierrors.NewConflict(corev1.Resource("persistentvolumes"), "pvc-1", errors.New("UID")), codes.Unavailable},
		"gone":      {apierrors.NewNotFound(corev1.Resource("persistentvolumes"), "pvc-1"), codes.NotFound},
		"late":      {context.DeadlineExceeded, codes.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			b := serve(t, made("pvc-1", "pvc-1", pv.CSI, volume.IOLimits{}))
			b.PrependReactor("patch", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, tt.err })
			err := b.modify(t, "flexlvm/pvc-1", map[string]string{"readIops": "7"})
			require.Equal(t, tt.code, status.Code(err), err)
			require.ErrorContains(t, err, `write the limits of PersistentVolume "pvc-1": `+tt.err.Error())
		})
	}
	b := serve(t, made("pvc-1", "pvc-1", pv.CSI, volume.IOLimits{}))
	b.PrependReactor("get", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) { panic("a bug") })
	err := b.modify(t, "flexlvm/pvc-1", nil)
	require.Equal(t, codes.Unavailable, status.Code(err), err)
	require.ErrorContains(t, err, "internal error in the provisioner")
}

// The resizer must see that this service only changes limits and does not expand volumes.
func TestCapabilities(t *testing.T) {
	b := serve(t)
	can, err := b.ControllerGetCapabilities(t.Context(), &csi.ControllerGetCapabilitiesRequest{})
	require.NoError(t, err)
	require.Len(t, can.GetCapabilities(), 1)
	require.Equal(t, csi.ControllerServiceCapability_RPC_MODIFY_VOLUME, can.GetCapabilities()[0].GetRpc().GetType())
	nodes, err := csi.NewNodeClient(b.conn).NodeGetCapabilities(t.Context(), &csi.NodeGetCapabilitiesRequest{})
	require.NoError(t, err)
	require.Empty(t, nodes.GetCapabilities())
	_, err = b.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{VolumeId: "flexlvm/pvc-1", CapacityRange: &csi.CapacityRange{RequiredBytes: 1}})
	require.Equal(t, codes.Unimplemented, status.Code(err))

	who := csi.NewIdentityClient(b.conn)
	info, err := who.GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	require.NoError(t, err)
	require.Equal(t, "flexlvm.io v9", info.GetName()+" "+info.GetVendorVersion())
	plugin, err := who.GetPluginCapabilities(t.Context(), &csi.GetPluginCapabilitiesRequest{})
	require.NoError(t, err)
	require.Len(t, plugin.GetCapabilities(), 1)
	require.Equal(t, csi.PluginCapability_Service_CONTROLLER_SERVICE, plugin.GetCapabilities()[0].GetService().GetType())
	_, err = who.Probe(t.Context(), &csi.ProbeRequest{})
	require.NoError(t, err)
}

func TestValidate(t *testing.T) {
	raw := made("pvc-2", "pvc-2", pv.CSI, volume.IOLimits{})
	raw.Spec.CSI.VolumeAttributes["volumeMode"] = "Block"
	b := serve(t, made("pvc-1", "pvc-1", pv.CSI, volume.IOLimits{}), raw)
	mounted := func(mode csi.VolumeCapability_AccessMode_Mode, fsType string, flags ...string) *csi.VolumeCapability {
		return &csi.VolumeCapability{
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType, MountFlags: flags}},
		}
	}
	block := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}, AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}}
	for name, tt := range map[string]struct {
		id   string
		can  *csi.VolumeCapability
		code codes.Code
		says string // empty: confirmed
	}{
		"as claims have it": {"flexlvm/pvc-1", mounted(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "xfs", "noatime"), codes.OK, ""},
		"for one pod":       {"flexlvm/pvc-1", mounted(csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, ""), codes.OK, ""},
		"block":             {"flexlvm/pvc-1", block, codes.OK, "holds a file system"},
		"a device":          {"flexlvm/pvc-2", block, codes.OK, ""},
		"no device":         {"flexlvm/pvc-2", mounted(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, ""), codes.OK, "without a file system"},
		"ext4":              {"flexlvm/pvc-1", mounted(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "ext4"), codes.OK, "that of type xfs"},
		"shared":            {"flexlvm/pvc-1", mounted(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, "xfs"), codes.OK, "the disk of one node"},
		"options":           {"flexlvm/pvc-1", mounted(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "xfs", "suid"), codes.OK, "suid"},
		"not there":         {"flexlvm/pvc-9", mounted(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "xfs"), codes.NotFound, ""},
		"no volume":         {"", block, codes.InvalidArgument, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := b.ValidateVolumeCapabilities(t.Context(), &csi.ValidateVolumeCapabilitiesRequest{VolumeId: tt.id, VolumeCapabilities: []*csi.VolumeCapability{tt.can}})
			require.Equal(t, tt.code, status.Code(err), err)
			if err != nil {
				return
			}
			require.Equal(t, tt.says == "", got.GetConfirmed() != nil)
			require.Contains(t, got.GetMessage(), tt.says)
		})
	}
	_, err := b.ValidateVolumeCapabilities(t.Context(), &csi.ValidateVolumeCapabilitiesRequest{VolumeId: "flexlvm/pvc-1"})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
}

// A file that is not a socket is not removed.
func TestServeWhereSomethingIs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "csi.sock")
	require.NoError(t, os.WriteFile(file, []byte("mine"), 0o600))
	require.ErrorContains(t, csicontroller.Serve(t.Context(), csicontroller.Config{Socket: file}), "listen for sidecars on "+file)
	require.FileExists(t, file)
	require.ErrorContains(t, csicontroller.Serve(t.Context(), csicontroller.Config{Socket: filepath.Join(file, "none")}), "listen for sidecars")
}
