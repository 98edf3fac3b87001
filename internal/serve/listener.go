package serve

import (
	"container/list"
	"net"
	"sync"
	"time"
)

// bounded is a listener that keeps a limited number of connections open. If none of them ends within
// pace, the next connection closes the oldest one. A client that holds many connections open thus loses
// its own, not the kubelet's, whose request is answered long before its connection is the oldest: a
// connection lasts at least limit times pace, and waits to be accepted at most the length of the kernel's
// queue times pace. If Accept waited for a free place instead, a client that holds them all could make
// the kubelet's probes fail and so have the process killed.
type bounded struct {
	net.Listener
	pace   time.Duration
	places chan struct{}

	mu   sync.Mutex
	open *list.List // of *counted, the oldest first
}

// counted is a connection that occupies one of the places.
type counted struct {
	net.Conn
	leave func()
}

func newBounded(l net.Listener, limit int, pace time.Duration) *bounded {
	return &bounded{Listener: l, pace: pace, places: make(chan struct{}, limit), open: list.New()}
}

// Accept implements net.Listener. It is called by one goroutine at a time.
func (b *bounded) Accept() (net.Conn, error) {
	conn, err := b.Listener.Accept()
	if err != nil {
		return nil, err
	}
	select {
	case b.places <- struct{}{}:
	case <-time.After(b.pace):
		b.endOldest()
		b.places <- struct{}{}
	}
	c := &counted{Conn: conn}
	b.mu.Lock()
	defer b.mu.Unlock()
	place := b.open.PushBack(c)
	c.leave = sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.open.Remove(place)
		<-b.places
	})
	return c, nil
}

func (b *bounded) endOldest() {
	b.mu.Lock()
	oldest := b.open.Front()
	b.mu.Unlock()
	if oldest != nil { // otherwise all connections have just ended
		_ = oldest.Value.(*counted).Close()
	}
}

// Close implements net.Conn.
func (c *counted) Close() error {
	err := c.Conn.Close()
	c.leave()
	return err
}
