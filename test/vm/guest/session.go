//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/test/vm/wire"
)

// lingering is how long to wait for a command's output after the command has ended, if a child of it keeps the
// output open.
const lingering = time.Second

// endOfInput is the character that ends a terminal's input, ^D.
const endOfInput = 4

// session is one running command.
type session struct {
	stream  uint32
	cmd     *exec.Cmd
	input   *queue
	tty     *os.File      // this side of the command's terminal, if it has one
	drained chan struct{} // closed when all of the terminal's output was read
}

func (s *server) start(stream uint32, request wire.ExecRequest) (*session, error) {
	cmd := exec.Command(request.Args[0], request.Args[1:]...)
	cmd.Env = append(os.Environ(), request.Env...)
	cmd.Dir = request.Dir
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	cmd.WaitDelay = lingering
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	session := &session{stream: stream, cmd: cmd, input: newQueue()}
	if request.TTY != nil {
		return session, s.startOnTerminal(session, *request.TTY)
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout = s.output(wire.Stdout, stream)
	cmd.Stderr = s.output(wire.Stderr, stream)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		session.input.drainTo(stdin)
		_ = stdin.Close()
	}()
	return session, nil
}

func (s *server) startOnTerminal(session *session, size wire.WindowSize) error {
	ours, theirs, err := openTerminal(size)
	if err != nil {
		return err
	}
	defer theirs.Close()
	cmd := session.cmd
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
	cmd.SysProcAttr.Setctty = true
	if err := cmd.Start(); err != nil {
		_ = ours.Close()
		return err
	}
	session.tty = ours
	session.drained = make(chan struct{})
	go func() {
		session.input.drainTo(ours)
		_, _ = ours.Write([]byte{endOfInput}) // closing it would hang up the terminal
	}()
	go func() {
		defer close(session.drained)
		_, _ = io.Copy(s.output(wire.Stdout, session.stream), ours) // ends with EIO when the last user has closed it
	}()
	return nil
}

func (s *session) handle(f wire.Frame) {
	switch f.Kind {
	case wire.Stdin:
		s.input.add(f.Payload)
	case wire.Kill:
		_ = unix.Kill(-s.cmd.Process.Pid, unix.SIGKILL)
	case wire.Resize:
		var size wire.WindowSize
		if s.tty != nil && json.Unmarshal(f.Payload, &size) == nil {
			_ = resizeTerminal(s.tty, size)
		}
	}
}

// wait waits for the command's end and for the end of its output.
func (s *session) wait() wire.ExitStatus {
	err := s.cmd.Wait()
	s.input.close()
	if s.tty != nil {
		select {
		case <-s.drained:
		case <-time.After(lingering):
		}
		_ = s.tty.Close()
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		return wire.ExitStatus{Code: 126, Error: err.Error()}
	}
	status := s.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return wire.ExitStatus{Code: 128 + int(status.Signal()), Signal: int(status.Signal())}
	}
	return wire.ExitStatus{Code: status.ExitStatus()}
}

// queue holds input that a command has not read yet, so that a command that does not read never delays the host's
// other frames.
type queue struct {
	mu     sync.Mutex
	filled sync.Cond
	chunks [][]byte
	closed bool
}

func newQueue() *queue {
	q := &queue{}
	q.filled.L = &q.mu
	return q
}

// add appends a chunk. An empty chunk marks the end.
func (q *queue) add(chunk []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = q.closed || len(chunk) == 0
	q.chunks = append(q.chunks, chunk)
	q.filled.Signal()
}

func (q *queue) close() { q.add(nil) }

// drainTo writes all chunks to w until the end.
func (q *queue) drainTo(w io.Writer) {
	for {
		q.mu.Lock()
		for len(q.chunks) == 0 {
			q.filled.Wait()
		}
		chunk := q.chunks[0]
		q.chunks = q.chunks[1:]
		q.mu.Unlock()
		if len(chunk) == 0 {
			return
		}
		if _, err := w.Write(chunk); err != nil {
			return // the command no longer reads
		}
	}
}
