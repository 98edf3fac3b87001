package csicontroller

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/pv"
)

// callDeadline is longer than sidecars wait for a response, 10 s by default.
const callDeadline = 30 * time.Second

// Config configures Serve.
type Config struct {
	Socket  string // its path, in an existing directory
	Version string
	Volumes Volumes
	// Snapshots are served unless this is nil.
	Snapshots *Snapshots
	// Gate, unless nil, admits calls while it is open. While it is closed, Probe reports not ready to sidecars,
	// and their calls are refused. Snapshots is not used before Gate is first opened.
	Gate *Gate
}

// A Gate admits calls while this process holds the lease. The zero value is closed.
type Gate struct {
	open  atomic.Pointer[context.Context] // ends when the gate closes; nil while the gate is closed
	calls sync.RWMutex                    // held for reading by each admitted call
}

// Open admits calls until ctx is done. Then the contexts of the admitted calls end, and Open returns once these
// calls have returned, so that none of them reserves room after the lease is released.
func (g *Gate) Open(ctx context.Context) {
	g.open.Store(&ctx)
	<-ctx.Done()
	g.open.Store(nil)
	g.calls.Lock()
	defer g.calls.Unlock()
}

// isOpen reports whether calls are admitted.
func (g *Gate) isOpen() bool { return g == nil || g.open.Load() != nil }

// enter admits a call. It returns a context for the call, which ends when the gate closes, and the function to
// call when the call has ended. leave is nil if calls are not admitted.
func (g *Gate) enter(call context.Context) (ctx context.Context, leave func()) {
	if g == nil {
		return call, func() {}
	}
	g.calls.RLock()
	open := g.open.Load()
	if open == nil {
		g.calls.RUnlock()
		return call, nil
	}
	ctx, cancel := context.WithCancel(call)
	stop := context.AfterFunc(*open, cancel)
	return ctx, func() {
		stop()
		cancel()
		g.calls.RUnlock()
	}
}

// Serve serves the calls of sidecars on the socket until ctx ends.
func Serve(ctx context.Context, cfg Config) error {
	// A killed process may have left its socket. Nothing else may be removed.
	if info, err := os.Lstat(cfg.Socket); err == nil && info.Mode().Type() == os.ModeSocket {
		if err := os.Remove(cfg.Socket); err != nil {
			return fmt.Errorf("remove what an earlier process has left: %w", err)
		}
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", cfg.Socket)
	if err != nil {
		return fmt.Errorf("listen for sidecars on %s: %w", cfg.Socket, err)
	}
	if err := os.Chmod(cfg.Socket, 0o600); err != nil {
		return errors.Join(fmt.Errorf("keep others from the socket: %w", err), listener.Close())
	}
	log := klog.FromContext(ctx)
	server := grpc.NewServer(grpc.UnaryInterceptor(func(call context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		if _, asksWho := info.Server.(csi.IdentityServer); !asksWho {
			var leave func()
			if call, leave = cfg.Gate.enter(call); leave == nil {
				return nil, status.Error(codes.Unavailable, "this provisioner is not the leader; another replica serves the request")
			}
			defer leave()
		}
		return answer(klog.NewContext(call, log), request, info, handle)
	}))
	service := New(cfg.Volumes, cfg.Snapshots)
	csi.RegisterIdentityServer(server, &identity{version: cfg.Version, groups: cfg.Snapshots != nil, gate: cfg.Gate})
	csi.RegisterControllerServer(server, service)
	csi.RegisterGroupControllerServer(server, service)
	csi.RegisterNodeServer(server, &node{})
	log.Info("The controller service waits for sidecars", "socket", cfg.Socket)
	end := context.AfterFunc(ctx, server.GracefulStop)
	defer end()
	if err := server.Serve(listener); err != nil {
		return fmt.Errorf("serve %s: %w", cfg.Socket, err)
	}
	return nil
}

// answer handles a call with a deadline, logs its failure, and gives its error a code.
func answer(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (out any, err error) {
	ctx, cancel := context.WithTimeout(ctx, callDeadline)
	defer cancel()
	log := klog.FromContext(ctx).WithValues("call", path.Base(info.FullMethod))
	if named, is := request.(interface{ GetVolumeId() string }); is {
		log = log.WithValues("volume", named.GetVolumeId())
	}
	defer func() {
		if p := recover(); p != nil {
			log.Error(fmt.Errorf("%v", p), "A call ended in a panic", "stack", string(debug.Stack()))
			// Not Internal, which is final: the call may have created a PersistentVolume.
			out, err = nil, status.Error(codes.Unavailable, "internal error in the provisioner; its log holds the details, please report them")
		}
	}()
	if out, err = handle(ctx, request); err != nil {
		err = statusOf(err)
		log.Error(err, "A call failed")
	}
	return out, err
}

// statusOf returns err with a gRPC code. An error without a code gets one that is not final: sidecars assume that
// the call may have had an effect, and repeat it. See rejected for final codes.
func statusOf(err error) error {
	if s, has := status.FromError(err); has {
		return s.Err()
	}
	code := codes.Unavailable
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		code = codes.DeadlineExceeded
	}
	return status.Error(code, err.Error())
}

// rejected returns the error of a write with a final code if the API server or an admission webhook has rejected the
// write, which then had no effect: the API server stores nothing before admission has ended. The same error of a read
// or a deletion is not final: it does not show whether the object exists.
func rejected(err error) error {
	switch {
	case controlplane.Denied(err):
		return status.Error(codes.FailedPrecondition, err.Error())
	case apierrors.IsNotFound(err):
		return status.Error(codes.NotFound, err.Error())
	}
	return err
}

// identity implements CSI's identity service.
type identity struct {
	csi.UnimplementedIdentityServer
	version string
	groups  bool // group snapshots are served
	gate    *Gate
}

func (i *identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: pv.Provisioner, VendorVersion: i.version}, nil
}

func (i *identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	offered := []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE}
	if i.groups {
		offered = append(offered, csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE)
	}
	out := &csi.GetPluginCapabilitiesResponse{}
	for _, one := range offered {
		out.Capabilities = append(out.Capabilities, &csi.PluginCapability{
			Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: one}},
		})
	}
	return out, nil
}

// Probe reports whether calls are served. Sidecars call it every second until they are.
func (i *identity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(i.gate.isOpen())}, nil
}

// node is a node service without capabilities, so that the resizer does not expand volumes: the provisioner
// does.
type node struct {
	csi.UnimplementedNodeServer
}

func (n *node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}
