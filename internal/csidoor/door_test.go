package csidoor

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/luks"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// fakeEngine records its calls and answers with do, space and inventory.
type fakeEngine struct {
	mu        sync.Mutex
	calls     []engineCall
	do        func(context.Context) error
	space     node.Space
	inventory inventory.Inventory
}

type engineCall struct {
	verb    string
	spec    volume.Spec
	request node.MountRequest
	size    volume.Bytes
}

func (f *fakeEngine) record(ctx context.Context, c engineCall) error {
	f.mu.Lock()
	f.calls = append(f.calls, c)
	f.mu.Unlock()
	if f.do == nil {
		return nil
	}
	return f.do(ctx)
}

func (f *fakeEngine) Mount(ctx context.Context, spec volume.Spec, request node.MountRequest) error {
	return f.record(ctx, engineCall{verb: "mount", spec: spec, request: request})
}

func (f *fakeEngine) Unmount(ctx context.Context, target string) error {
	return f.record(ctx, engineCall{verb: "unmount", request: node.MountRequest{Target: target}})
}

func (f *fakeEngine) ExpandMounted(ctx context.Context, g volume.Group, n volume.Name, path string, size volume.Bytes, key luks.Key) (node.Space, error) {
	return f.space, f.record(ctx, engineCall{verb: "expand", spec: volume.Spec{Group: g, Name: n}, request: node.MountRequest{Target: path, Key: key}, size: size})
}

func (f *fakeEngine) Space(g volume.Group, n volume.Name, path string) (node.Space, error) {
	return f.space, f.record(context.Background(), engineCall{verb: "space", spec: volume.Spec{Group: g, Name: n}, request: node.MountRequest{Target: path}})
}

func (f *fakeEngine) Inventory(ctx context.Context) (inventory.Inventory, error) {
	return f.inventory, f.record(ctx, engineCall{verb: "inventory"})
}

// verbs returns the names of the engine's calls.
func (f *fakeEngine) verbs() (out []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.calls {
		out = append(out, c.verb)
	}
	return out
}

// A door is a running driver and a client of it.
type door struct {
	engine *fakeEngine
	socket string
	conn   *grpc.ClientConn
	csi.NodeClient
	ended chan error
	stop  context.CancelFunc
	log   lockedBuffer
	ahead atomic.Int64 // how far the driver's clock is ahead, in nanoseconds
}

func (d *door) now() time.Time { return time.Now().Add(time.Duration(d.ahead.Load())) }

// A lockedBuffer is written to by one goroutine and read by another.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func open(t *testing.T) *door {
	t.Helper()
	return openAt(t, filepath.Join(t.TempDir(), "flexlvm.io.sock"))
}

func openAt(t *testing.T, socket string) *door {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	d := &door{engine: &fakeEngine{}, socket: socket, ended: make(chan error, 1), stop: cancel}
	log := logrus.New()
	log.SetLevel(logrus.TraceLevel)
	log.SetOutput(&d.log)
	go func() {
		d.ended <- Serve(ctx, Config{Socket: socket, Node: "node-1", Version: "v9", Log: log, Now: d.now}, d.engine)
	}()
	t.Cleanup(cancel)
	require.Eventually(t, func() bool { _, err := os.Lstat(socket); return err == nil }, time.Minute, time.Millisecond)
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	d.conn, d.NodeClient = conn, csi.NewNodeClient(conn)
	return d
}

const clusterUID = "7f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11"

// publish returns a request as kubelet sends it for a PersistentVolume of flexlvm.
func publish(t *testing.T) *csi.NodePublishVolumeRequest {
	t.Helper()
	parent := filepath.Join(t.TempDir(), "pods/5f0/volumes/kubernetes.io~csi/pvc-1")
	require.NoError(t, os.MkdirAll(parent, 0o750))
	return &csi.NodePublishVolumeRequest{
		VolumeId:   "flexlvm/pvc-1",
		TargetPath: filepath.Join(parent, "mount"),
		VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "xfs"}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		},
		VolumeContext: map[string]string{
			"volumeGroup": "flexlvm", "size": fmt.Sprint(int64(volume.GiB)), "layout": "linear", "kind": "claim", "clusterUID": clusterUID,
			"namespace":                              "shop",
			"csi.storage.k8s.io/pod.name":            "web-0",
			"csi.storage.k8s.io/pod.namespace":       "shop",
			"csi.storage.k8s.io/pod.uid":             "5f0",
			"csi.storage.k8s.io/serviceAccount.name": "default",
			"csi.storage.k8s.io/ephemeral":           "false",
		},
	}
}

func spec() volume.Spec {
	return volume.Spec{
		Group: "flexlvm", Name: "pvc-1", Size: volume.GiB, Layout: volume.Linear, Kind: volume.Claim,
		Cluster: clusterUID, Namespace: "shop",
	}
}
