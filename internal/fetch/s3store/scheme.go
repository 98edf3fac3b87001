package s3store

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
	"github.com/flexlvm/flexlvm/internal/fetch/web"
)

// ResolveScheme determines the scheme of an endpoint that has none, and returns a note for the user; empty if
// the endpoint has a scheme. It chooses plain HTTP only for a server that answers a TLS handshake in
// plain HTTP, or that answers no handshake but a plain request, itself. A server that does not answer
// at all counts as https: it may only be unreachable for a while.
func (c *Config) ResolveScheme(ctx context.Context) (note string) {
	raw := c.Endpoint
	if raw == "" || strings.Contains(raw, "://") || strings.Contains(raw, "@") {
		return "" // connect reports an invalid endpoint
	}
	plain, secure := "http://"+raw, "https://"+raw
	c.Endpoint = secure
	if _, err := web.NewTransport(true, c.CAFile, 0); err != nil {
		return "" // connect reports this error, too
	}
	_, _, err := c.probe(ctx, secure)
	if isHTTPAnswer(err) || !isTLSAnswer(err) && c.answers(ctx, plain) {
		c.Endpoint = plain
	}
	return fmt.Sprintf("the endpoint %s has no scheme; assuming %s: add the scheme", raw, c.Endpoint)
}

// probe sends a request to a server, and returns the status of the response, and the target of a
// redirect, if any. A server that accepts the connection and does not answer runs into the usual
// timeout.
func (c *Config) probe(ctx context.Context, address string) (status int, location string, err error) {
	transport, err := web.NewTransport(strings.HasPrefix(address, "https://"), c.CAFile, 0)
	if err != nil {
		return 0, "", err
	}
	ctx, _, stop := store.WatchStall(ctx, c.Stall)
	defer stop()
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodHead, address, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, "", store.Cause(ctx, err)
	}
	return response.StatusCode, response.Header.Get("Location"), response.Body.Close()
}

// answers reports whether a server accepts a request in plain HTTP. TLS servers answer that it is a bad
// request; others redirect to https; and a proxy answers for servers that it cannot reach.
func (c *Config) answers(ctx context.Context, address string) bool {
	status, location, err := c.probe(ctx, address)
	if err != nil || strings.HasPrefix(strings.ToLower(location), "https://") {
		return false
	}
	switch status {
	case http.StatusBadRequest, http.StatusProxyAuthRequired, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return false
	}
	return true
}

// isHTTPAnswer reports whether a TLS handshake was answered in plain HTTP.
func isHTTPAnswer(err error) bool {
	header := tls.RecordHeaderError{}
	return errors.As(err, &header) && string(header.RecordHeader[:]) == "HTTP/" ||
		err != nil && strings.Contains(err.Error(), "server gave HTTP response to HTTPS client")
}

// isTLSAnswer reports whether a TLS handshake was answered in TLS, if only with an untrusted certificate.
func isTLSAnswer(err error) bool {
	var alert tls.AlertError
	var certificate *tls.CertificateVerificationError
	return err == nil || errors.As(err, &alert) || errors.As(err, &certificate) || strings.Contains(err.Error(), "remote error: tls: ")
}
