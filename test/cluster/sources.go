package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/flexlvm/flexlvm/test/built"
	"github.com/flexlvm/flexlvm/test/oci"
	"github.com/flexlvm/flexlvm/test/vm"
)

// StartRegistry starts a real registry beside the control plane, where pods reach it at its
// Host. It ends with Stop or with this process.
func (c *Cluster) StartRegistry(ctx context.Context, port int) (*oci.Registry, error) {
	registry, err := oci.Start(ctx, oci.Config{
		Address: net.JoinHostPort(controlAddress, strconv.Itoa(port)),
		Command: c.Command, Dial: c.Dial, Log: c.log,
	})
	if err != nil {
		return nil, fmt.Errorf("start registry in the cluster's network: %w", err)
	}
	return registry, nil
}

// StartHub starts a small Hub of models and datasets (test/hub), and a server of the folder
// files/, beside the control plane. It has its large files at the next port. The returned
// function ends it, as does the end of this process.
func (c *Cluster) StartHub(ctx context.Context, port int, dir, token string) (endpoint string, stop func() error, err error) {
	root, err := vm.SourceDir()
	if err != nil {
		return "", nil, err
	}
	binary := filepath.Join(dir, "serve")
	if err := built.Go(ctx, root, binary, "./test/hub/serve"); err != nil {
		return "", nil, err
	}
	address := net.JoinHostPort(controlAddress, strconv.Itoa(port))
	cmd := c.Command(context.WithoutCancel(ctx), binary, "--address", address, "--blobs", net.JoinHostPort(controlAddress, strconv.Itoa(port+1)), "--dir", dir)
	cmd.Env = append(os.Environ(), "HUB_TOKEN="+token)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return "", nil, fmt.Errorf("start Hub in the cluster's network: %w", err)
	}
	stop = func() error {
		if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
		_ = cmd.Wait() // killed
		return nil
	}
	client := &http.Client{Transport: &http.Transport{DialContext: c.Dial}, Timeout: time.Second}
	defer client.CloseIdleConnections()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		response, err := client.Get("http://" + address + "/files/")
		if err == nil {
			response.Body.Close()
			return "http://" + address, stop, nil
		}
		if time.Now().After(end) {
			return "", nil, errors.Join(fmt.Errorf("start Hub in the cluster's network: %w", err), stop())
		}
	}
}
