//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/flexlvm/flexlvm/test/vm/wire"
)

// dialHost opens the connection to the host.
func dialHost() (net.Conn, error) {
	p, err := readParameters()
	if err != nil {
		return nil, err
	}
	host := net.JoinHostPort(wire.HostAddress.String(), p.control)
	deadline := time.Now().Add(30 * time.Second)
	for {
		// The network card may appear a moment later.
		err := wire.SetUp("eth0", wire.GuestAddress)
		if err == nil {
			var conn net.Conn
			if conn, err = net.DialTimeout("tcp4", host, time.Until(deadline)); err == nil {
				return conn, nil
			}
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("call the host: %w", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// server runs commands for the host.
type server struct {
	port io.ReadWriter

	writing sync.Mutex // one frame at a time

	mu       sync.Mutex
	sessions map[uint32]*session
}

// serve handles the host's frames until the connection is closed.
func serve() error {
	port, err := dialHost()
	if err != nil {
		return err
	}
	s := &server{port: port, sessions: map[uint32]*session{}}
	if err := s.send(wire.Frame{Kind: wire.Hello}); err != nil {
		return err
	}
	for {
		f, err := wire.Read(port)
		if err != nil {
			return fmt.Errorf("read from host: %w", err)
		}
		if err := s.handle(f); err != nil {
			return err
		}
	}
}

func (s *server) handle(f wire.Frame) error {
	switch f.Kind {
	case wire.Exec:
		var request wire.ExecRequest
		if err := json.Unmarshal(f.Payload, &request); err != nil {
			return fmt.Errorf("parse request: %w", err)
		}
		if len(request.Args) == 0 {
			return errors.New("parse request: no command")
		}
		session, err := s.start(f.Stream, request)
		if err != nil {
			return s.exit(f.Stream, wire.ExitStatus{Code: 127, Error: err.Error()})
		}
		s.mu.Lock()
		s.sessions[f.Stream] = session
		s.mu.Unlock()
		go s.finish(session)
	case wire.PowerOff:
		powerOff()
	default:
		s.mu.Lock()
		session := s.sessions[f.Stream]
		s.mu.Unlock()
		if session != nil { // nil: it has just ended
			session.handle(f)
		}
	}
	return nil
}

// finish reports the end of a command after all of its output.
func (s *server) finish(session *session) {
	status := session.wait()
	s.mu.Lock()
	delete(s.sessions, session.stream)
	s.mu.Unlock()
	if err := s.exit(session.stream, status); err != nil {
		fmt.Fprintln(os.Stderr, "guest: report exit:", err)
	}
}

func (s *server) exit(stream uint32, status wire.ExitStatus) error {
	b, err := json.Marshal(status)
	if err != nil {
		return err
	}
	return s.send(wire.Frame{Kind: wire.Exit, Stream: stream, Payload: b})
}

func (s *server) send(f wire.Frame) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	return wire.Write(s.port, f)
}

// output returns a writer that sends its bytes in frames of the given kind.
func (s *server) output(kind wire.Kind, stream uint32) io.Writer {
	return outputWriter{server: s, kind: kind, stream: stream}
}

type outputWriter struct {
	server *server
	kind   wire.Kind
	stream uint32
}

func (w outputWriter) Write(b []byte) (int, error) {
	for sent := 0; sent < len(b); {
		n := min(len(b)-sent, wire.MaxPayload)
		if err := w.server.send(wire.Frame{Kind: w.kind, Stream: w.stream, Payload: b[sent : sent+n]}); err != nil {
			return sent, err
		}
		sent += n
	}
	return len(b), nil
}
