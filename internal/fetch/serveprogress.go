package fetch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
)

// ProgressHandler answers GET /progress with the status, and GET /ready with 200 once the
// destination is usable and 503 before.
func ProgressHandler(progress *Progress) http.Handler {
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, status int) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(progress.Status(time.Now())) // the client has gone
	}
	mux.HandleFunc("GET "+protocol.ProgressPath, func(w http.ResponseWriter, r *http.Request) {
		if final := r.URL.Query().Get(protocol.FinalQuery); final != "" {
			progress.AskFinal(final)
		}
		answer(w, http.StatusOK)
	})
	mux.HandleFunc("GET "+protocol.ReadyPath, func(w http.ResponseWriter, _ *http.Request) {
		if !progress.Ready() {
			answer(w, http.StatusServiceUnavailable)
			return
		}
		answer(w, http.StatusOK)
	})
	return mux
}

// ServeProgress serves on address until the returned function is called. It returns the address of its
// listener.
func ServeProgress(ctx context.Context, address string, progress *Progress) (net.Addr, func(), error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, nil, fmt.Errorf("listen on --listen %s: %w", address, err)
	}
	server := &http.Server{Handler: ProgressHandler(progress), ReadHeaderTimeout: 5 * time.Second}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			_ = listener.Close()
		}
	}()
	return listener.Addr(), func() {
		_ = server.Close()
		<-ended
	}, nil
}
