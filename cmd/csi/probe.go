package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// probePatience is how long the driver may take to say that it is there.
const probePatience = 5 * time.Second

// probe asks the driver that serves the socket whether it is ready: CSI's call Probe, on a
// connection of its own, as kubelet makes its calls.
//
// It speaks the few frames of HTTP/2 that one call takes. gRPC's client would take 2.6 MiB
// of memory on every node.
func probe(ctx context.Context, socket string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if err := conn.SetDeadline(time.Now().Add(probePatience)); err != nil {
		return fmt.Errorf("probe %s: %w", socket, err)
	}
	if err := call(conn, csi.Identity_Probe_FullMethodName); err != nil {
		return fmt.Errorf("probe %s: %w", socket, err)
	}
	return nil
}

// stream is the number of the only one on a connection.
const stream = 1

// call calls a method with an empty request, and does not read what the response says
// beyond gRPC's status.
func call(conn io.ReadWriter, method string) error {
	frames := http2.NewFramer(conn, conn)
	frames.ReadMetaHeaders = hpack.NewDecoder(4<<10, nil)
	if err := request(conn, frames, method); err != nil {
		return fmt.Errorf("send the request: %w", err)
	}
	for {
		frame, err := frames.ReadFrame()
		if err != nil {
			return fmt.Errorf("wait for the response: %w", err)
		}
		switch f := frame.(type) {
		case *http2.MetaHeadersFrame:
			if f.StreamEnded() {
				return statusIn(f)
			}
		case *http2.RSTStreamFrame:
			return fmt.Errorf("the call was ended: %s", f.ErrCode)
		case *http2.GoAwayFrame:
			return fmt.Errorf("the connection was ended: %s", f.ErrCode)
		}
	}
}

// request sends a call of a method. An empty message is what is left of it: no compression,
// and a length of zero.
func request(to io.Writer, frames *http2.Framer, method string) error {
	var header bytes.Buffer
	encoder := hpack.NewEncoder(&header)
	for _, field := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: method}, {Name: ":authority", Value: "localhost"},
		{Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
	} {
		if err := encoder.WriteField(field); err != nil {
			return err
		}
	}
	if _, err := io.WriteString(to, http2.ClientPreface); err != nil {
		return err
	}
	if err := frames.WriteSettings(); err != nil {
		return err
	}
	if err := frames.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: header.Bytes(), EndHeaders: true}); err != nil {
		return err
	}
	return frames.WriteData(stream, true, make([]byte, 5))
}

// statusIn reads how a call has ended.
func statusIn(trailer *http2.MetaHeadersFrame) error {
	code, message := "", ""
	for _, field := range trailer.Fields {
		switch field.Name {
		case "grpc-status":
			code = field.Value
		case "grpc-message":
			message = field.Value
		}
	}
	if code != "0" {
		return fmt.Errorf("the call failed with gRPC's status %q: %s", code, message)
	}
	return nil
}
