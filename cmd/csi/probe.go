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

// probeTimeout is the timeout of a probe.
const probeTimeout = 5 * time.Second

// probe checks that the driver which serves the socket is ready: it makes CSI's call Probe on a new connection,
// as kubelet makes its calls.
//
// It implements only the HTTP/2 frames of one call: gRPC's client would take 2.6 MiB of memory on every node.
func probe(ctx context.Context, socket string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if err := conn.SetDeadline(time.Now().Add(probeTimeout)); err != nil {
		return fmt.Errorf("probe %s: %w", socket, err)
	}
	if err := call(conn, csi.Identity_Probe_FullMethodName); err != nil {
		return fmt.Errorf("probe %s: %w", socket, err)
	}
	return nil
}

// stream is the ID of the connection's only stream.
const stream = 1

// call calls a method with an empty request. Of the response it only reads gRPC's status.
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
			return fmt.Errorf("the driver ended the call: %s", f.ErrCode)
		case *http2.GoAwayFrame:
			return fmt.Errorf("the driver closed the connection: %s", f.ErrCode)
		}
	}
}

// request sends the call of a method with an empty message, which consists of five zero bytes: no compression
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

// statusIn returns the error in gRPC's status of a call, if any.
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
		return fmt.Errorf("the call failed with gRPC status %q: %s", code, message)
	}
	return nil
}
