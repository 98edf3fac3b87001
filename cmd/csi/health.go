package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/flexlvm/flexlvm/internal/pause"
)

// Limits of health checks.
const (
	maxRequest  = 16 << 10 // maximum number of bytes read of a request
	acceptPause = 100 * time.Millisecond
)

// serveHealth serves /healthz on an address. It reports whether the driver responds on its socket, which it
// calls as kubelet does. kubelet cannot run a program for that in the container, because the process has left
// the container's namespaces.
//
// It implements only as much HTTP as that needs: net/http would take 1.7 MiB of memory on every node.
func serveHealth(ctx context.Context, address, socket string) (end func() error, err error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for health checks (choose another --health-address): %w", err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			switch {
			case errors.Is(err, net.ErrClosed):
				return
			case err != nil: // such as too many open files
				if pause.For(ctx, acceptPause) != nil {
					return
				}
			default:
				go answerHealth(ctx, conn, socket)
			}
		}
	}()
	return listener.Close, nil
}

// answerHealth handles one request and closes the connection. A client that does not wait for the response gets
// none.
func answerHealth(ctx context.Context, conn net.Conn, socket string) {
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(2 * probeTimeout))
	lines := bufio.NewScanner(io.LimitReader(conn, maxRequest))
	request := ""
	for lines.Scan() && lines.Text() != "" { // the header ends with an empty line
		if request == "" {
			request = lines.Text()
		}
	}
	status, body := "200 OK", "ok"
	if !strings.HasPrefix(request, "GET /healthz HTTP/1.") {
		status, body = "404 Not Found", "only GET /healthz is served"
	} else if err := probe(ctx, socket); err != nil {
		status, body = "503 Service Unavailable", err.Error()
	}
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s\n", status, len(body)+1, body)
}
