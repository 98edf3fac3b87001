package peers

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// source is a file server with a limit on its total bandwidth.
type source struct {
	url      string
	server   *http.Server
	contents map[string][]byte
	rate     int64

	mu   sync.Mutex
	free time.Time // when everything scheduled so far will have been sent
	sent int64
}

// serve creates files of this size and serves them with a list of them.
func serve(ctx context.Context, files int, size, rate int64) (*source, error) {
	s := &source{contents: map[string][]byte{}, rate: rate}
	random := rand.NewChaCha8([32]byte{})
	var list strings.Builder
	for i := range files {
		data := make([]byte, size)
		_, _ = random.Read(data) // never fails
		name := fmt.Sprintf("file-%03d", i)
		s.contents["/"+name] = data
		fmt.Fprintf(&list, "{\"url\":%q,\"sha256\":\"%x\",\"size\":%d}\n", name, sha256.Sum256(data), size)
	}
	s.contents["/list"] = []byte(list.String())
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s.url = "http://" + listener.Addr().String() + "/list"
	s.server = &http.Server{Handler: s, ReadHeaderTimeout: time.Minute}
	go func() { _ = s.server.Serve(listener) }() // ends with the source
	return s, nil
}

func (s *source) close() { _ = s.server.Close() }

func (s *source) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	data, known := s.contents[r.URL.Path]
	if !known {
		http.NotFound(w, r)
		return
	}
	http.ServeContent(w, r, "", time.Unix(1_700_000_000, 0), &slow{bytes.NewReader(data), r.Context(), s})
}

// slow is content that is sent at the source's bandwidth.
type slow struct {
	io.ReadSeeker
	ctx  context.Context
	from *source
}

func (s *slow) Read(data []byte) (int, error) {
	n, err := s.ReadSeeker.Read(data)
	s.from.mu.Lock()
	now := time.Now()
	if s.from.free.Before(now) {
		s.from.free = now
	}
	due := s.from.free.Sub(now)
	s.from.free = s.from.free.Add(time.Duration(float64(n) / float64(s.from.rate) * float64(time.Second)))
	s.from.sent += int64(n)
	s.from.mu.Unlock()
	timer := time.NewTimer(due)
	defer timer.Stop()
	select {
	case <-s.ctx.Done():
		return 0, s.ctx.Err()
	case <-timer.C:
	}
	return n, err
}

// taken returns how many bytes were sent, and resets the count.
func (s *source) taken() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.sent
	s.sent = 0
	return n
}
