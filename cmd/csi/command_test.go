package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/flexlvm/flexlvm/internal/csidoor"
)

func TestFlagsThatAreWrong(t *testing.T) {
	t.Setenv(nodeVariable, "")
	for name, tt := range map[string]struct {
		args []string
		err  string
	}{
		"no node":    {nil, "--node-name is empty"},
		"log level":  {[]string{"--node-name=n", "--log-level=loud"}, "log level"},
		"zero rate":  {[]string{"--node-name=n", "--zero-rate=fast"}, `--zero-rate "fast": is not a rate`},
		"a word":     {[]string{"now"}, "unknown command"},
		"no socket":  {[]string{"--node-name=n", "--health-address=", "--host-namespaces=false", "--socket=x.sock", "--log-level=error"}, "must be absolute"},
		"no address": {[]string{"--node-name=n", "--health-address=nowhere", "--host-namespaces=false"}, "--health-address"},
		"no kubelet": {[]string{"--node-name=n", "--health-address=", "--host-namespaces=false", "--socket=/nowhere/x.sock", "--log-level=error"}, "kubelet makes the directory"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := command()
			cmd.SetArgs(tt.args)
			require.ErrorContains(t, cmd.Execute(), tt.err)
		})
	}
}

func TestDefaults(t *testing.T) {
	t.Setenv(nodeVariable, "node-1")
	f := command().Flags()
	name, err := f.GetString("node-name")
	require.NoError(t, err)
	require.Equal(t, "node-1", name)
	socket, err := f.GetString("socket")
	require.NoError(t, err)
	require.Equal(t, "/var/lib/kubelet/plugins_registry/flexlvm.io.sock", socket)
}

// /healthz reports whether the driver answers on its socket.
func TestHealth(t *testing.T) {
	// The address is unique to this process: on a shared one, another process could use the port
	// meanwhile.
	listener, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.251:0", 1+os.Getpid()%250, 1+os.Getpid()/250%250))
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	socket := filepath.Join(t.TempDir(), "s.sock")
	end, err := serveHealth(t.Context(), address, socket)
	require.NoError(t, err)
	defer func() { require.NoError(t, end()) }()
	silent, err := net.Dial("tcp", address) // does not block other requests
	require.NoError(t, err)
	defer func() { require.NoError(t, silent.Close()) }()
	get := func(path string) int {
		answer, err := http.Get("http://" + address + path)
		require.NoError(t, err)
		_, err = io.ReadAll(answer.Body) // fails if the Content-Length is wrong
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		return answer.StatusCode
	}
	ask := func() int { return get("/healthz") }
	require.Equal(t, http.StatusNotFound, get("/"))
	require.Equal(t, http.StatusNotFound, get("/healthz/"))
	require.Equal(t, http.StatusServiceUnavailable, ask())

	log := logrus.New()
	log.SetOutput(io.Discard)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- csidoor.Serve(ctx, csidoor.Config{Socket: socket, Node: "n", Log: log}, nil) }()
	require.Eventually(t, func() bool { return ask() == http.StatusOK }, time.Minute, time.Millisecond)
	cancel()
	require.NoError(t, <-ended)
	require.Equal(t, http.StatusServiceUnavailable, ask())
}

// The probe fails if another server answers on the socket, the driver is not ready, or the connection
// is closed.
func TestProbeOfSomethingElse(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s.sock")
	require.ErrorContains(t, probe(t.Context(), socket), "no such file")

	serve := func(register func(*grpc.Server)) {
		listener, err := net.Listen("unix", socket)
		require.NoError(t, err)
		server := grpc.NewServer()
		register(server)
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(server.Stop)
	}
	serve(func(*grpc.Server) {})
	require.ErrorContains(t, probe(t.Context(), socket), `gRPC status "12": unknown service csi.v1.Identity`)

	require.NoError(t, os.Remove(socket))
	serve(func(s *grpc.Server) { csi.RegisterIdentityServer(s, unready{}) })
	require.ErrorContains(t, probe(t.Context(), socket), `gRPC status "9": not now`)

	require.NoError(t, os.Remove(socket))
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	require.Error(t, probe(t.Context(), socket))
	require.NoError(t, listener.Close())
}

type unready struct {
	csi.UnimplementedIdentityServer
}

func (unready) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return nil, status.Error(codes.FailedPrecondition, "not now")
}

// A driver that accepts connections but does not answer is not ready.
func TestProbeOfWhatSaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		require.NoError(t, ours.SetDeadline(time.Now().Add(probeTimeout)))
		require.ErrorIs(t, call(ours, csi.Identity_Probe_FullMethodName), os.ErrDeadlineExceeded)
		require.NoError(t, theirs.Close())
	})
}
