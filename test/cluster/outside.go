package cluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"

	"k8s.io/client-go/tools/clientcmd"
)

// OutsideKubeconfig writes an administrator's kubeconfig for a program that, like a user's, runs on this machine
// and not in the cluster's network. It is valid until ctx ends.
func (c *Cluster) OutsideKubeconfig(ctx context.Context, path string) error {
	config, err := clientcmd.LoadFromFile(c.AdminKubeconfig())
	if err != nil {
		return fmt.Errorf("expose the API server: %w", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("expose the API server: %w", err)
	}
	context.AfterFunc(ctx, func() { l.Close() })
	for _, one := range config.Clusters {
		server, err := url.Parse(one.Server)
		if err != nil {
			return fmt.Errorf("expose the API server: %w", err)
		}
		one.Server, one.TLSServerName = "https://"+l.Addr().String(), server.Hostname()
		go c.forward(ctx, l, server.Host)
	}
	return clientcmd.WriteToFile(*config, path)
}

// forward forwards every connection to an address in the cluster's network.
func (c *Cluster) forward(ctx context.Context, l net.Listener, address string) {
	for {
		outside, err := l.Accept()
		if err != nil {
			return // it was closed
		}
		inside, err := c.Dial(ctx, "tcp", address)
		if err != nil {
			outside.Close()
			continue
		}
		done := context.AfterFunc(ctx, func() { outside.Close() })
		go func() {
			_, _ = io.Copy(inside, outside)
			inside.Close()
		}()
		go func() {
			_, _ = io.Copy(outside, inside)
			outside.Close()
			done()
		}()
	}
}
