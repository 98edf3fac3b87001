package vm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/flexlvm/flexlvm/test/vm/wire"
)

// errGuestGone is the error of a command if the guest ends first.
var errGuestGone = errors.New("the guest is gone")

// guest is the host's side of the connection to process 1, for one boot.
type guest struct {
	port  io.ReadWriter
	ready chan struct{} // closed at the first Hello
	gone  chan struct{} // closed at the end, once err is set
	err   error

	writing sync.Mutex

	mu       sync.Mutex
	next     uint32
	commands map[uint32]*running
}

// running is a command in the guest.
type running struct {
	stream         uint32
	stdout, stderr io.Writer
	exit           chan wire.ExitStatus // gets one value
}

func newGuest(port io.ReadWriter) *guest {
	return &guest{
		port:     port,
		ready:    make(chan struct{}),
		gone:     make(chan struct{}),
		commands: map[uint32]*running{},
	}
}

// listen dispatches the guest's frames until the connection ends.
func (g *guest) listen() {
	defer close(g.gone)
	for {
		f, err := wire.Read(g.port)
		if err != nil {
			g.err = errGuestGone
			return
		}
		if err := g.handle(f); err != nil {
			g.err = err
			return
		}
	}
}

func (g *guest) handle(f wire.Frame) error {
	switch f.Kind {
	case wire.Hello:
		close(g.ready)
		return nil
	case wire.Failed:
		return fmt.Errorf("the guest gave up: %s", f.Payload)
	}
	g.mu.Lock()
	command := g.commands[f.Stream]
	g.mu.Unlock()
	if command == nil {
		return nil // the caller has given up waiting
	}
	switch f.Kind {
	case wire.Stdout:
		_, _ = command.stdout.Write(f.Payload) // a failing reader must not stop the command
	case wire.Stderr:
		_, _ = command.stderr.Write(f.Payload)
	case wire.Exit:
		var status wire.ExitStatus
		if err := json.Unmarshal(f.Payload, &status); err != nil {
			return fmt.Errorf("parse exit status: %w", err)
		}
		g.forget(f.Stream)
		command.exit <- status
	}
	return nil
}

// begin registers a command and its output.
func (g *guest) begin(stdout, stderr io.Writer) *running {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.next++
	r := &running{stream: g.next, stdout: stdout, stderr: stderr, exit: make(chan wire.ExitStatus, 1)}
	g.commands[r.stream] = r
	return r
}

func (g *guest) forget(stream uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.commands, stream)
}

func (g *guest) send(f wire.Frame) error {
	g.writing.Lock()
	defer g.writing.Unlock()
	return wire.Write(g.port, f)
}

func (g *guest) sendJSON(kind wire.Kind, stream uint32, v any) error {
	g.writing.Lock()
	defer g.writing.Unlock()
	return wire.WriteJSON(g.port, kind, stream, v)
}
