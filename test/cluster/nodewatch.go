package cluster

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"time"
)

// nodeWatch queries the API server from inside the namespace.
type nodeWatch struct {
	client *http.Client
}

func newNodeWatch(dir string) (*nodeWatch, error) {
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "pki/supervisor.crt"), filepath.Join(dir, "pki/supervisor.key"))
	if err != nil {
		return nil, fmt.Errorf("read supervisor's certificate: %w", err)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{
		Certificates: []tls.Certificate{cert},
		// Nothing else is in this namespace, and some certificates are self-signed.
		InsecureSkipVerify: true,
	}}
	return &nodeWatch{client: &http.Client{Transport: transport, Timeout: 10 * time.Second}}, nil
}

// answers reports whether a GET of the URL returns 200.
func (w *nodeWatch) answers(ctx context.Context, url string) bool {
	return w.get(ctx, url, nil) == nil
}

// nodeState is a node's state in the API; the zero value if the API does not have the node.
type nodeState struct {
	ready bool
	boot  string
}

func (w *nodeWatch) node(ctx context.Context, name string) nodeState {
	var node struct {
		Status struct {
			Conditions []struct{ Type, Status string }
			NodeInfo   struct{ BootID string }
		}
	}
	if err := w.get(ctx, "https://127.0.0.1:6443/api/v1/nodes/"+name, &node); err != nil {
		return nodeState{}
	}
	state := nodeState{boot: node.Status.NodeInfo.BootID}
	for _, c := range node.Status.Conditions {
		state.ready = state.ready || c.Type == "Ready" && c.Status == "True"
	}
	return state
}

func (w *nodeWatch) get(ctx context.Context, url string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("get %s: %s", url, resp.Status)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(into)
}
