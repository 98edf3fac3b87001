package cluster

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/net/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// execProtocol is the WebSocket protocol of the API server's exec requests, in which the first byte of each message
// is its channel.
const execProtocol = "v4.channel.k8s.io"

// The channels of execProtocol. The last message is the command's status, a metav1.Status.
const (
	stdoutChannel = 1
	stderrChannel = 2
	statusChannel = 3
)

// Exec runs a command in a pod's only container and returns its standard output. Its standard error is in the error.
// It sends the request of `kubectl exec` itself, because the start of a kubectl costs a twentieth of a second of
// processor time.
func (c *Cluster) Exec(ctx context.Context, namespace, pod string, command ...string) (string, error) {
	out, err := c.exec(ctx, namespace, pod, command)
	if err != nil {
		return out, fmt.Errorf("in pod %s/%s: %s: %w", namespace, pod, strings.Join(command, " "), err)
	}
	return out, nil
}

func (c *Cluster) exec(ctx context.Context, namespace, pod string, command []string) (string, error) {
	query := url.Values{"stdout": {"true"}, "stderr": {"true"}, "command": command}
	socket, err := c.openSocket(ctx, fmt.Sprintf("/api/v1/namespaces/%s/pods/%s/exec?%s", namespace, pod, query.Encode()))
	if err != nil {
		return "", err
	}
	defer socket.Close()
	defer context.AfterFunc(ctx, func() { _ = socket.Close() })() // it ends Receive
	var stdout, stderr strings.Builder
	for {
		var message []byte
		if err := websocket.Message.Receive(socket, &message); err != nil {
			return stdout.String(), errors.Join(ctx.Err(), fmt.Errorf("the command's status is unknown: %w", err))
		}
		if len(message) == 0 {
			continue
		}
		switch content := message[1:]; message[0] {
		case stdoutChannel:
			stdout.Write(content)
		case stderrChannel:
			stderr.Write(content)
		case statusChannel:
			return stdout.String(), statusError(content, stderr.String())
		}
	}
}

// openSocket opens a WebSocket to the API server as the cluster's administrator.
func (c *Cluster) openSocket(ctx context.Context, path string) (*websocket.Conn, error) {
	admin, err := clientcmd.BuildConfigFromFlags("", c.AdminKubeconfig())
	if err != nil {
		return nil, err
	}
	secure, err := rest.TLSConfigFor(admin)
	if err != nil {
		return nil, err
	}
	server, err := url.Parse(admin.Host)
	if err != nil {
		return nil, err
	}
	config, err := websocket.NewConfig("wss://"+server.Host+path, admin.Host)
	if err != nil {
		return nil, err
	}
	config.Protocol = []string{execProtocol}
	raw, err := c.Dial(ctx, "tcp", server.Host)
	if err != nil {
		return nil, err
	}
	secure.ServerName, _, _ = net.SplitHostPort(server.Host)
	conn := &recordingConn{Conn: tls.Client(raw, secure), record: new(bytes.Buffer)}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // it ends the handshakes
	socket, err := websocket.NewClient(config, conn)
	if err != nil {
		return nil, errors.Join(ctx.Err(), fmt.Errorf("connect to the pod: %w: %s", err, conn.refusal()), conn.Close())
	}
	conn.record = nil
	return socket, nil
}

// recordingConn records the answer to a handshake, of which websocket.NewClient reports only that it is a refusal.
type recordingConn struct {
	net.Conn
	record *bytes.Buffer
}

func (c *recordingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.record != nil {
		c.record.Write(b[:n])
	}
	return n, err
}

// refusal returns the recorded answer's text, whose rest may still be under way.
func (c *recordingConn) refusal() string {
	if err := c.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		return err.Error()
	}
	answer, err := http.ReadResponse(bufio.NewReader(io.MultiReader(bytes.NewReader(c.record.Bytes()), c.Conn)), nil)
	if err != nil {
		return err.Error()
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 4096)) // what has come in time is enough
	return answer.Status + ": " + strings.TrimSpace(string(text))
}

// statusError returns the error of a command that failed, with its standard error.
func statusError(content []byte, stderr string) error {
	var status metav1.Status
	if err := json.Unmarshal(content, &status); err != nil {
		return fmt.Errorf("the command's status %q is invalid: %w", content, err)
	}
	if status.Status == metav1.StatusSuccess {
		return nil
	}
	return fmt.Errorf("%s: %s", status.Message, strings.TrimSpace(stderr))
}
