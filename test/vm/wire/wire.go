// Package wire is the protocol between the host and process 1 of a guest: frames over one TCP connection, on a link
// that nothing else uses. Output, exit codes and input have separate frames, so a command's output cannot be
// mistaken for anything else, and the exit code always follows the last byte of output.
package wire

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// Kind is the type of a frame.
type Kind uint8

// Frames sent by the guest.
const (
	// Hello is the first frame: the guest is ready for Exec.
	Hello Kind = iota + 1
	// Failed means that the guest cannot get ready; the payload is the reason.
	Failed
	// Stdout and Stderr carry a command's output.
	Stdout
	Stderr
	// Exit is the last frame of a command, an ExitStatus.
	Exit
)

// Frames sent by the host.
const (
	// Exec starts a command; the payload is an ExecRequest.
	Exec Kind = iota + 64
	// Stdin carries input for a command; an empty frame ends it.
	Stdin
	// Resize carries a new WindowSize of a command's terminal.
	Resize
	// Kill kills a command and its process group.
	Kill
	// PowerOff syncs all file systems and powers the guest off.
	PowerOff
)

// MaxPayload is the size limit of a frame's payload in bytes.
const MaxPayload = 64 << 10

const headerSize = 9

// Frame is one message. Stream identifies the command that it belongs to.
type Frame struct {
	Kind    Kind
	Stream  uint32
	Payload []byte
}

// ExecRequest is the payload of Exec.
type ExecRequest struct {
	Args []string    `json:"args"`
	Env  []string    `json:"env,omitempty"`
	Dir  string      `json:"dir,omitempty"`
	TTY  *WindowSize `json:"tty,omitempty"`
}

// WindowSize is the size of a terminal in characters.
type WindowSize struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// ExitStatus is the payload of Exit. Error is set if the command could not be started.
type ExitStatus struct {
	Code   int    `json:"code"`
	Signal int    `json:"signal,omitempty"`
	Error  string `json:"error,omitempty"`
}

// Write writes one frame with a single call of w.Write.
func Write(w io.Writer, f Frame) error {
	if len(f.Payload) > MaxPayload {
		return fmt.Errorf("write frame: %d bytes are more than a frame holds", len(f.Payload))
	}
	b := make([]byte, headerSize+len(f.Payload))
	b[0] = byte(f.Kind)
	binary.LittleEndian.PutUint32(b[1:], f.Stream)
	binary.LittleEndian.PutUint32(b[5:], uint32(len(f.Payload)))
	copy(b[headerSize:], f.Payload)
	_, err := w.Write(b)
	return err
}

// WriteJSON writes a frame whose payload is v in JSON.
func WriteJSON(w io.Writer, kind Kind, stream uint32, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode frame: %w", err)
	}
	return Write(w, Frame{Kind: kind, Stream: stream, Payload: b})
}

// Read reads one frame. It returns io.EOF at the end of the stream, and io.ErrUnexpectedEOF inside a frame.
func Read(r io.Reader) (Frame, error) {
	var h [headerSize]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return Frame{}, err
	}
	f := Frame{Kind: Kind(h[0]), Stream: binary.LittleEndian.Uint32(h[1:])}
	n := binary.LittleEndian.Uint32(h[5:])
	if n > MaxPayload {
		return Frame{}, fmt.Errorf("read frame: length %d is out of range", n)
	}
	f.Payload = make([]byte, n)
	if _, err := io.ReadFull(r, f.Payload); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return Frame{}, err
	}
	return f, nil
}
