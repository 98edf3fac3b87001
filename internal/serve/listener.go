package serve

import (
	"container/list"
	"net"
	"sync"
	"time"
)

// A bounded listener keeps so many connections open, and no more: where none ends within
// the pace, one more ends the oldest. Who opens connections and holds them takes them
// from himself so, and not from a kubelet, whose request is answered long before its
// connection is the oldest: most times the pace is how long each has at least, and the
// kernel's queue times the pace how long it waits for its turn at most. Waiting for a
// place instead would let whoever holds them all have the process killed.
type bounded struct {
	net.Listener
	pace   time.Duration
	places chan struct{}

	mu   sync.Mutex
	open *list.List // of *counted, the oldest first
}

// counted is a connection that has a place.
type counted struct {
	net.Conn
	leave func()
}

func newBounded(l net.Listener, most int, pace time.Duration) *bounded {
	return &bounded{Listener: l, pace: pace, places: make(chan struct{}, most), open: list.New()}
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
	if oldest != nil { // else all have ended just now
		_ = oldest.Value.(*counted).Close()
	}
}

// Close implements net.Conn.
func (c *counted) Close() error {
	err := c.Conn.Close()
	c.leave()
	return err
}
