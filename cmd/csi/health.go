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
)

// Limits of one health check.
const (
	mostRequest = 16 << 10 // bytes of a request that are read
	acceptPause = 100 * time.Millisecond
)

// serveHealth answers /healthz on an address: whether the driver answers on its socket, as
// kubelet would ask it. kubelet cannot run a program for that in the container, whose
// process has left its namespaces.
//
// It speaks just enough HTTP for that. net/http would take 1.7 MiB of memory on every node.
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
				select {
				case <-ctx.Done():
					return
				case <-time.After(acceptPause):
				}
			default:
				go answerHealth(ctx, conn, socket)
			}
		}
	}()
	return listener.Close, nil
}

// answerHealth answers one request and closes the connection. A client that does not wait for the answer
// gets none.
func answerHealth(ctx context.Context, conn net.Conn, socket string) {
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(2 * probePatience))
	lines := bufio.NewScanner(io.LimitReader(conn, mostRequest))
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
