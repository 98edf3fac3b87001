package csidoor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// DefaultSocket is in the directory where kubelet discovers plugins, if it runs with its default directory.
const DefaultSocket = "/var/lib/kubelet/plugins_registry/flexlvm.io.sock"

// Config configures Serve.
type Config struct {
	Socket  string // absolute; DefaultSocket if empty
	Node    string // the node's name
	Version string
	Log     logrus.FieldLogger
	Now     func() time.Time // time.Now if nil
}

// Serve serves kubelet's calls on the socket until ctx is done or kubelet refuses the registration. Then it
// waits for the calls in progress.
//
// One socket at a fixed path serves both the registration and the calls: kubelet refuses a plugin whose name is
// already registered from another path.
func Serve(ctx context.Context, cfg Config, engine Engine) error {
	if cfg.Socket == "" {
		cfg.Socket = DefaultSocket
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	listener, err := listen(ctx, cfg.Socket)
	if err != nil {
		return err
	}
	refused := make(chan error, 1)
	server := newServer(cfg, engine, refused)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	// Only now: kubelet calls as soon as it sees the socket.
	own, err := publishSocket(cfg.Socket)
	if err != nil {
		server.Stop()
		return err
	}
	cfg.Log.WithField("socket", cfg.Socket).Info("the CSI driver waits for kubelet")
	select {
	case <-ctx.Done():
	case err = <-refused:
	case err = <-served:
		err = fmt.Errorf("serve %s: %w", cfg.Socket, err)
	}
	err = errors.Join(err, removeSocket(cfg.Socket, own))
	stop(server)
	return err
}

// shutdownTimeout is how long Serve waits for calls in progress when it stops. kubelet repeats a call that is cut
// off.
const shutdownTimeout = 20 * time.Second

func stop(server *grpc.Server) {
	timer := time.AfterFunc(shutdownTimeout, server.Stop)
	defer timer.Stop()
	server.GracefulStop()
}

func newServer(cfg Config, engine Engine, refused chan<- error) *grpc.Server {
	common := &interceptor{log: cfg.Log, busy: map[string]bool{}}
	server := grpc.NewServer(grpc.UnaryInterceptor(common.intercept))
	csi.RegisterIdentityServer(server, &identity{version: cfg.Version})
	csi.RegisterNodeServer(server, &service{
		engine: engine, node: cfg.Node, inventories: newInventoryCache(engine, cfg.Now), now: cfg.Now,
	})
	registerapi.RegisterRegistrationServer(server, &registration{endpoint: cfg.Socket, status: func(s *registerapi.RegistrationStatus) {
		if s.GetPluginRegistered() {
			cfg.Log.Info("kubelet has registered the CSI driver")
			return
		}
		select {
		case refused <- fmt.Errorf("kubelet does not register the CSI driver: %s", s.GetError()):
		default: // the refusal was already reported
		}
	}})
	return server
}

// temporaryName returns the name of a socket that does not accept calls yet. kubelet ignores names that begin
// with a dot.
func temporaryName(socket string) string {
	return filepath.Join(filepath.Dir(socket), "."+filepath.Base(socket)+".new")
}

// listen creates the socket under its temporary name, accessible only to root.
func listen(ctx context.Context, socket string) (net.Listener, error) {
	if !filepath.IsAbs(socket) || strings.HasPrefix(filepath.Base(socket), ".") {
		return nil, fmt.Errorf("listen on %q: the socket's path must be absolute, and its name must not begin with a dot", socket)
	}
	path := temporaryName(socket)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove what an earlier process has left: %w", err)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w; kubelet makes the directory when it starts: is it another one here (--socket)?", path, err)
	}
	if unix, is := l.(*net.UnixListener); is {
		unix.SetUnlinkOnClose(false) // it is renamed by then
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("keep others from the socket: %w", err), l.Close())
	}
	return l, nil
}

// publishSocket renames the socket to its final name, replacing the socket of a killed process, and returns
// its FileInfo to identify it.
func publishSocket(socket string) (os.FileInfo, error) {
	if info, err := os.Lstat(socket); err == nil && info.Mode().Type() != os.ModeSocket {
		return nil, fmt.Errorf("publish the socket: %s is something else; remove it", socket)
	}
	if err := os.Rename(temporaryName(socket), socket); err != nil {
		return nil, fmt.Errorf("publish the socket: %w", err)
	}
	return os.Lstat(socket)
}

// removeSocket removes the socket, which deregisters the driver from kubelet, unless another process has
// published its own there.
func removeSocket(socket string, own os.FileInfo) error {
	now, err := os.Lstat(socket)
	switch {
	case errors.Is(err, os.ErrNotExist) || err == nil && !os.SameFile(now, own):
		return nil
	case err == nil:
		err = os.Remove(socket)
	}
	if err != nil {
		return fmt.Errorf("remove the socket: %w", err)
	}
	return nil
}
