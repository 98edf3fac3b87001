package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// Config describes which peers to copy from.
type Config struct {
	// Peers are their addresses, HOST:PORT.
	Peers []string
	// Index is the digest of the wanted index.
	Index    string
	Identity *Identity
	// Stall is how long a peer may take to respond; 0 is no limit.
	Stall time.Duration
}

// Store reads from peers. A repeated request for a file means that the file broke off, or did not match
// the index: it then comes from another peer, if there is one.
type Store struct {
	client *http.Client
	digest string
	stall  time.Duration
	index  Index
	files  map[string]File

	mu          sync.Mutex
	peers       []*peerState
	assignments map[string]*assignment // by path
	picks       int
}

// A peerState is a peer, with what this store has learned about it.
type peerState struct {
	address string
	faults  int // failed requests, and files that did not match
	open    int
}

// An assignment records to which peer a file is assigned.
type assignment struct {
	to   *peerState          // nil: the next span comes from another peer
	sent map[*peerState]bool // peers asked for the file since it was begun
}

const dialTime = 5 * time.Second

// New returns a Store that asks peers. It sends nothing yet.
func New(c Config) (*Store, error) {
	s := &Store{digest: c.Index, stall: c.Stall, assignments: map[string]*assignment{}}
	for _, address := range c.Peers {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return nil, store.Usage(fmt.Errorf("peer %q is not of the form HOST:PORT: %w", address, err))
		}
		s.peers = append(s.peers, &peerState{address: address})
	}
	if len(s.peers) == 0 || c.Index == "" {
		return nil, store.Usage(errors.New("peers and the digest of their index go together; give both"))
	}
	// Peers are reached directly, whatever proxy the environment names.
	s.client = &http.Client{
		Transport: &http.Transport{
			DialContext: (&net.Dialer{Timeout: dialTime}).DialContext, TLSClientConfig: c.Identity.tls(), TLSHandshakeTimeout: dialTime,
			ResponseHeaderTimeout: c.Stall, MaxIdleConnsPerHost: maxRequests, IdleConnTimeout: idleTime / 2, DisableCompression: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return s, nil
}

// List implements store.Store: it reads the index from the first peer that has it.
func (s *Store) List(ctx context.Context, each func(store.Object) error) error {
	err := errors.New("no peer is configured")
	for range s.peers {
		if err = s.readIndex(ctx, s.anyPeer()); err == nil || context.Cause(ctx) != nil {
			break
		}
	}
	if err != nil {
		return &store.Error{Retryable: true, Err: fmt.Errorf("no peer has the index %s: %w", s.digest, err)}
	}
	s.files = make(map[string]File, len(s.index.Files))
	for _, f := range s.index.Files {
		s.files[f.Path] = f
		if err := each(f.object()); err != nil {
			return err
		}
	}
	return nil
}

func (f File) object() store.Object {
	return store.Object{Key: f.Path, Size: f.Bytes, ETag: f.ETag, Version: f.VersionID, Modified: f.Modified}
}

func (s *Store) readIndex(ctx context.Context, from *peerState) error {
	ctx, watchdog, stop := store.WatchStall(ctx, s.stall)
	defer stop()
	body, err := s.get(ctx, from, indexPath, nil, nil)
	if err != nil {
		return store.Cause(ctx, err)
	}
	data, err := io.ReadAll(io.LimitReader(watchdog.Feed(body), MaxIndex+1))
	_ = body.Close() // it was only read
	err = store.Cause(ctx, err)
	if err == nil {
		s.index, err = parseIndex(data, s.digest)
	}
	if err != nil {
		s.addFault(from)
		return fmt.Errorf("peer %s: %w", from.address, err)
	}
	return nil
}

// Revision implements store.Revisioned.
func (s *Store) Revision() string { return s.index.Revision }

// Stat implements store.Store. The run calls it whenever it begins a large file.
func (s *Store) Stat(_ context.Context, key, _ string) (store.Object, store.Sums, error) {
	f, known := s.files[key]
	if !known {
		return store.Object{}, store.Sums{}, store.ErrGone
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.assign(key)
	return f.object(), f.sums(), nil
}

func (f File) sums() store.Sums { return store.Sums{SHA256: f.SHA256, Opaque: true} }

// Open implements store.Store.
func (s *Store) Open(ctx context.Context, object store.Object, part store.Span) (store.Stream, error) {
	f, known := s.files[object.Key]
	if !known {
		return store.Stream{}, store.ErrGone
	}
	out := store.Stream{Size: f.Bytes, Sums: f.sums(), Body: http.NoBody}
	if part.Length == 0 {
		return out, nil
	}
	from := s.peerFor(f.Path, part.Length == f.Bytes)
	body, err := s.get(ctx, from, filePath, url.Values{pathQuery: {f.Path}}, &part)
	if err != nil {
		s.reassign(f.Path, from)
		return store.Stream{}, err
	}
	s.mu.Lock()
	from.open++
	s.mu.Unlock()
	out.Body = &watched{ReadCloser: body, store: s, from: from, path: f.Path}
	return out, nil
}

// Parts implements store.Store: the index has the checksum of the whole.
func (s *Store) Parts(context.Context, store.Object, int) ([]int64, error) { return nil, nil }

// get sends a request to one peer, for a span if part is set. A response of another length is an error.
func (s *Store) get(ctx context.Context, from *peerState, path string, query url.Values, part *store.Span) (io.ReadCloser, error) {
	address := url.URL{Scheme: "https", Host: from.address, Path: path, RawQuery: query.Encode()}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("ask peer %s: %w", from.address, err)
	}
	wanted := http.StatusOK
	if part != nil {
		wanted = http.StatusPartialContent
		request.Header.Set("Range", "bytes="+strconv.FormatInt(part.Offset, 10)+"-"+strconv.FormatInt(part.End()-1, 10))
	}
	answer, err := s.client.Do(request)
	switch {
	case err != nil:
		err = fmt.Errorf("ask peer: %w", err)
	case answer.StatusCode == http.StatusServiceUnavailable:
		err = &store.HTTPError{Status: answer.StatusCode, Host: "peer " + from.address}
	case answer.StatusCode != wanted:
		err = fmt.Errorf("peer %s answers %s", from.address, answer.Status)
	case part != nil && answer.ContentLength != part.Length:
		err = fmt.Errorf("peer %s sends %d bytes of %d", from.address, answer.ContentLength, part.Length)
	default:
		return answer.Body, nil
	}
	if answer != nil {
		_ = answer.Body.Close() // its content does not matter
	}
	s.addFault(from)
	return nil, err
}

func (s *Store) anyPeer() *peerState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pickPeer()
}

// pickPeer returns a peer with the fewest faults, and of these one with the fewest open requests.
func (s *Store) pickPeer() *peerState {
	s.picks++
	var best *peerState
	for i := range s.peers {
		p := s.peers[(i+s.picks)%len(s.peers)]
		if best == nil || p.faults < best.faults || p.faults == best.faults && p.open < best.open {
			best = p
		}
	}
	return best
}

// assign assigns a file to a peer. If peers have already sent the file, it did not match: that counts as
// a fault of each of them, as any may have sent the wrong part. A peer that also broke off has more
// faults.
func (s *Store) assign(path string) *assignment {
	last := s.assignments[path]
	if last != nil && last.to != nil && len(last.sent) == 0 {
		return last
	}
	if last != nil {
		for p := range last.sent {
			p.faults++
		}
	}
	s.assignments[path] = &assignment{to: s.pickPeer(), sent: map[*peerState]bool{}}
	return s.assignments[path]
}

// peerFor returns the peer to ask for a whole file, or for one more span of it.
func (s *Store) peerFor(path string, whole bool) *peerState {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.assignments[path]
	if whole || a == nil {
		a = s.assign(path)
	}
	if a.to == nil {
		a.to = s.pickPeer()
	}
	a.sent[a.to] = true
	return a.to
}

// reassign makes the next span of a file come from another peer.
func (s *Store) reassign(path string, from *peerState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := s.assignments[path]; last != nil && last.to == from {
		last.to = nil
	}
}

func (s *Store) addFault(p *peerState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.faults++
}

// watched is the content of a file, or of a span of it. If it breaks off, the next span
// comes from another peer.
type watched struct {
	io.ReadCloser
	store *Store
	from  *peerState
	path  string
	done  sync.Once
}

// Close implements io.Closer.
func (w *watched) Close() error {
	w.done.Do(func() {
		w.store.mu.Lock()
		defer w.store.mu.Unlock()
		w.from.open--
	})
	return w.ReadCloser.Close()
}

func (w *watched) Read(data []byte) (int, error) {
	n, err := w.ReadCloser.Read(data)
	if err != nil && !errors.Is(err, io.EOF) {
		w.store.addFault(w.from)
		w.store.reassign(w.path, w.from)
		err = fmt.Errorf("peer %s: %w", w.from.address, err)
	}
	return n, err
}
