package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"

	"github.com/minio/minio-go/v7/pkg/signer"
)

// Proxy forwards requests to a server, applies its faults to some, and records all of them.
type Proxy struct {
	// Endpoint is the proxy's URL. Signatures for it are valid, because the server receives the host that the
	// client sent.
	Endpoint string

	backend *url.URL
	access  string
	secret  string
	http    *http.Client
	server  *httptest.Server
	life    context.Context // ends with Close
	end     context.CancelFunc

	mu       sync.Mutex
	faults   []*fault
	requests []*Request
}

// A Request is the proxy's record of one request.
type Request struct {
	Method string
	// Path is as the client sent it, not yet decoded; Query is decoded.
	Path  string
	Query url.Values
	// Range is the header of that name.
	Range string
	// Status is the status of the response, 0 if there was none.
	Status int
	// Sent is the number of bytes of the body that were sent to the client.
	Sent int64
}

// Proxy starts a proxy for the server. It runs until Close.
func (s *Server) Proxy(faults ...Fault) (*Proxy, error) {
	backend, err := url.Parse(s.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("start proxy: %w", err)
	}
	p := &Proxy{backend: backend, access: s.Access, secret: s.Secret, http: &http.Client{
		Transport:     s.transport(),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	p.life, p.end = context.WithCancel(context.Background())
	p.Inject(faults...)
	p.server = httptest.NewServer(p)
	p.Endpoint = p.server.URL
	return p, nil
}

// Close stops the proxy and ends all requests.
func (p *Proxy) Close() {
	p.end()
	p.server.CloseClientConnections()
	p.server.Close()
	p.http.CloseIdleConnections()
}

// Inject replaces the faults.
func (p *Proxy) Inject(faults ...Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = nil
	for _, f := range faults {
		p.faults = append(p.faults, &fault{Fault: f})
	}
}

// Forget clears the record.
func (p *Proxy) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests = nil
}

// Requests returns the record in the order in which the requests arrived.
func (p *Proxy) Requests() []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]Request, len(p.requests))
	for i, r := range p.requests {
		all[i] = *r
	}
	return all
}

// Sent returns how many bytes of objects whose path has this suffix were sent to clients in response to GET.
func (p *Proxy) Sent(suffix string) int64 {
	var sum int64
	for _, r := range p.Requests() {
		if r.Method == http.MethodGet && strings.Count(r.Path, "/") > 1 && !strings.HasSuffix(r.Path, "/") && strings.HasSuffix(r.Path, suffix) {
			sum += r.Sent
		}
	}
	return sum
}

// ServeHTTP forwards a request, or applies a fault to it.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// net/http does not notice a client that disconnects while it still has unread input.
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(p.life, cancel)()
	r = r.WithContext(ctx)
	record, f := p.begin(r)
	if f.Before != nil {
		f.Before()
	}
	if f.Delay > 0 && !wait(r.Context(), f.Delay) {
		return
	}
	if f.Status != 0 {
		p.answer(record, f.Status)
		refuse(w, f.Status, f.Code)
		return
	}
	response, err := p.forward(r, f.Drop)
	if err != nil {
		if r.Context().Err() == nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
		}
		return
	}
	defer response.Body.Close()
	if f.Edit != nil && r.Method != http.MethodHead && response.StatusCode < 300 {
		if err := edit(response, f.Edit); err != nil {
			panic(http.ErrAbortHandler)
		}
	}
	for name, values := range response.Header {
		w.Header()[name] = values
	}
	if f.ETag != "" {
		w.Header().Set("ETag", `"`+f.ETag+`"`)
	}
	p.answer(record, response.StatusCode)
	w.WriteHeader(response.StatusCode)
	if r.Method != http.MethodHead {
		p.copy(r.Context(), w, response.Body, f, record)
	}
}

// begin records a request and returns the fault that hits it, if any.
func (p *Proxy) begin(r *http.Request) (*Request, Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	record := &Request{Method: r.Method, Path: r.URL.EscapedPath(), Query: r.URL.Query(), Range: r.Header.Get("Range")}
	p.requests = append(p.requests, record)
	for _, f := range p.faults {
		if f.hits(r) {
			return record, f.Fault
		}
	}
	return record, Fault{}
}

func (p *Proxy) answer(record *Request, status int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	record.Status = status
}

// forward sends the same request to the server.
func (p *Proxy) forward(r *http.Request, drop []string) (*http.Response, error) {
	to := r.Clone(r.Context())
	to.RequestURI = ""
	to.URL.Scheme, to.URL.Host = p.backend.Scheme, p.backend.Host
	if len(drop) > 0 {
		for _, name := range drop {
			to.Header.Del(name)
		}
		p.sign(to)
	}
	if to.Header.Get("Accept-Encoding") == "" {
		to.Header.Set("Accept-Encoding", "identity") // otherwise this client requests gzip
	}
	return p.http.Do(to)
}

// sign signs a request whose headers have changed.
func (p *Proxy) sign(r *http.Request) {
	r.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
	*r = *signer.SignV4(*r, p.access, p.secret, "", Region)
}

// copy sends the body, with the fault's effect on it.
func (p *Proxy) copy(ctx context.Context, w http.ResponseWriter, body io.Reader, f Fault, record *Request) {
	sent := &counter{to: w, add: func(n int) {
		p.mu.Lock()
		defer p.mu.Unlock()
		record.Sent += int64(n)
	}}
	var err error
	switch {
	case f.Drip > 0:
		err = drip(ctx, sent, body, f.Drip)
	case f.Cut != nil:
		_, err = io.CopyN(sent, body, *f.Cut)
		if err == nil || errors.Is(err, io.EOF) {
			flush(w)
			panic(http.ErrAbortHandler) // closes the connection prematurely
		}
	case f.Reset != nil:
		_, err = io.CopyN(sent, body, *f.Reset)
		if err == nil || errors.Is(err, io.EOF) {
			flush(w)
			reset(w)
			return
		}
	case f.Hang != nil:
		_, err = io.CopyN(sent, body, *f.Hang)
		if err == nil {
			flush(w)
			<-ctx.Done()
			panic(http.ErrAbortHandler)
		} else if errors.Is(err, io.EOF) {
			err = nil
		}
	default:
		_, err = io.Copy(sent, body)
	}
	if err != nil {
		panic(http.ErrAbortHandler) // the client or the server is gone
	}
}

type counter struct {
	to  io.Writer
	add func(int)
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.to.Write(b)
	c.add(n)
	return n, err
}

func flush(w http.ResponseWriter) {
	_ = http.NewResponseController(w).Flush() // fails only if the client is gone
}

// reset ends a connection with an RST.
func reset(w http.ResponseWriter) {
	connection, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := connection.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = connection.Close()
}
