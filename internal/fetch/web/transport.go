package web

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"
)

// NewTransport returns the transport for a server. It keeps enough connections to close none that may
// still be used, uses HTTP/1.1 (in HTTP/2 all requests share one connection and its window), and
// decompresses nothing.
//
// If readBuffer is not 0, at most that many bytes wait in the kernel for a reader that is slow on
// purpose: these bytes are lost in a kill.
func NewTransport(secure bool, caFile string, readBuffer int) (http.RoundTripper, error) {
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, address)
			if tcp, ok := conn.(*net.TCPConn); ok && readBuffer > 0 {
				err = tcp.SetReadBuffer(readBuffer)
			}
			return conn, err
		},
		MaxIdleConns:          512,
		MaxIdleConnsPerHost:   512,
		IdleConnTimeout:       time.Minute,
		TLSHandshakeTimeout:   10 * time.Second,
		ExpectContinueTimeout: time.Second,
		DisableCompression:    true,
		ReadBufferSize:        64 << 10,
		WriteBufferSize:       8 << 10,
	}
	if !secure {
		return t, nil
	}
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	if caFile != "" {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		pem, err := os.ReadFile(caFile)
		if err != nil {
			return nil, fmt.Errorf("read --ca-file: %w", err)
		}
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--ca-file %s holds no certificate in PEM", caFile)
		}
		t.TLSClientConfig.RootCAs = pool
	}
	return t, nil
}
