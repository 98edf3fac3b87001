package cluster

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// Status is the supervisor's view of a process of the cluster.
type Status struct {
	Name string
	// Node is false for components of the control plane.
	Node    bool
	Running bool
	// Ready is a node's Ready condition in the API.
	Ready bool
	// Boot is the boot ID that a node's kubelet reported last.
	Boot string
}

// handler is the supervisor's interface:
//
//	GET  /status
//	POST /stop                     end the cluster
//	POST /processes/NAME/kill      SIGKILL; of a node, a power cut
//	POST /processes/NAME/start     start it again, and wait until it is ready
//	POST /nodes/NAME/await?boot=B  wait until the node is Ready in another boot
func (s *supervisor) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		var all []Status
		for _, p := range s.processes {
			status := Status{Name: p.Name, Node: p.Ready == "", Running: p.alive()}
			if status.Node {
				node := s.bootOf(r.Context(), p)
				status.Ready, status.Boot = node.ready, node.boot
			}
			all = append(all, status)
		}
		_ = json.NewEncoder(w).Encode(all) // fails only if the client is gone
	})
	mux.HandleFunc("POST /stop", func(http.ResponseWriter, *http.Request) { s.stop() })
	mux.HandleFunc("POST /processes/{name}/kill", s.withProcess(func(_ *http.Request, p *process) error {
		return p.kill()
	}))
	mux.HandleFunc("POST /processes/{name}/start", s.withProcess(func(r *http.Request, p *process) error {
		if p.Ready != "" {
			return s.startControl(r.Context(), p)
		}
		before := s.bootOf(r.Context(), p).boot
		if err := p.start(); err != nil {
			return err
		}
		return s.awaitNode(r.Context(), p, before)
	}))
	mux.HandleFunc("POST /nodes/{name}/await", s.withProcess(func(r *http.Request, p *process) error {
		return s.awaitNode(r.Context(), p, r.URL.Query().Get("boot"))
	}))
	return mux
}

func (s *supervisor) withProcess(do func(*http.Request, *process) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("name")
		for _, p := range s.processes {
			if p.Name != name {
				continue
			}
			if err := do(r, p); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
			return
		}
		http.Error(w, fmt.Sprintf("no process %q in this cluster", name), http.StatusNotFound)
	}
}
