package serve_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/serve"
)

// many is the number of connections of a flood.
const many = 300

// large is a collector with many series that records how many collections ran at the same time.
type large struct {
	*prometheus.GaugeVec
	now, most atomic.Int32
}

func newLarge(series int) *large {
	l := &large{GaugeVec: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "many_series", Help: "What a large node has."}, []string{"volume"})}
	for i := range series {
		l.WithLabelValues(fmt.Sprintf("pvc-%036d", i)).Set(float64(i))
	}
	return l
}

// Collect implements prometheus.Collector.
func (l *large) Collect(to chan<- prometheus.Metric) {
	now := l.now.Add(1)
	defer l.now.Add(-1)
	for most := l.most.Load(); now > most; most = l.most.Load() {
		if l.most.CompareAndSwap(most, now) {
			break
		}
	}
	l.GaugeVec.Collect(to)
}

var well = serve.Health{Check: func(*http.Request) error { return nil }}

// healthy probes as kubelet does, on its own connection, but with a timeout that suits a busy machine.
func healthy(t *testing.T, address string) {
	t.Helper()
	require.NoError(t, isHealthy(address))
}

func isHealthy(address string) error {
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + address + "/healthz")
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	return errors.Join(err, response.Body.Close())
}

// open counts the connections that the server has not closed.
func open(t *testing.T, connections []net.Conn) (left int) {
	t.Helper()
	var said [512]byte
	for _, c := range connections {
		raw, err := c.(*net.TCPConn).SyscallConn()
		require.NoError(t, err)
		require.NoError(t, raw.Control(func(fd uintptr) {
			n, err := 1, error(nil)
			for n > 0 && err == nil { // a response may precede the close
				n, _, err = unix.Recvfrom(int(fd), said[:], unix.MSG_DONTWAIT)
			}
			if errors.Is(err, unix.EAGAIN) {
				left++
			}
		}))
	}
	return left
}

func dial(t *testing.T, address string, count int) []net.Conn {
	t.Helper()
	connections := make([]net.Conn, count)
	for i := range connections {
		c, err := net.Dial("tcp", address)
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		connections[i] = c
	}
	return connections
}

func start(t *testing.T, metrics prometheus.Gatherer) string {
	t.Helper()
	server := serve.New(metrics, well)
	at, err := server.Listen(t.Context(), serve.Options{Address: "127.0.0.1:0"}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Close() })
	return at.Health
}

// Anybody who reaches the port may pipeline any number of requests for metrics on any number of
// connections. That must cost the daemon neither memory nor its health.
func TestFloodOfScrapes(t *testing.T) {
	metrics := newLarge(3000)
	registry := serve.NewRegistry()
	registry.MustRegister(metrics)
	address := start(t, registry)
	const request = "GET /metrics HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n"
	var whole, refused, compressed atomic.Int32
	stop := make(chan struct{})
	var all sync.WaitGroup
	for range many {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				c, err := net.Dial("tcp", address)
				if err != nil {
					continue
				}
				_ = c.SetDeadline(time.Now().Add(time.Minute))
				_, _ = io.WriteString(c, strings.Repeat(request, 20))
				answers := bufio.NewReader(c)
				for range 20 {
					response, err := http.ReadResponse(answers, nil)
					if err != nil {
						break // the server closed it in favour of another connection
					}
					if response.Header.Get("Content-Encoding") != "" {
						compressed.Add(1)
					}
					switch _, err := io.Copy(io.Discard, response.Body); {
					case err == nil && response.StatusCode == http.StatusOK:
						whole.Add(1)
					case response.StatusCode == http.StatusServiceUnavailable:
						refused.Add(1)
					}
					_ = response.Body.Close()
				}
				c.Close()
			}
		})
	}
	require.Eventually(t, func() bool { return whole.Load() > 0 }, 5*time.Minute, 10*time.Millisecond)
	for range 10 {
		// Like kubelet with failureThreshold 3: a connection whose handler gets no processor time is
		// closed in favour of another.
		err := isHealthy(address)
		for tries := 1; err != nil && tries < 3; tries++ {
			err = isHealthy(address)
		}
		require.NoError(t, err)
	}
	close(stop)
	all.Wait()
	require.Zero(t, compressed.Load(), "a compressor takes memory")
	require.LessOrEqual(t, metrics.most.Load(), int32(2), "at once")
	require.NotZero(t, refused.Load())
	t.Logf("%d scrapes answered, %d refused", whole.Load(), refused.Load())
}

// Connections that are held open, idle or sending slowly, do not block the health endpoint.
func TestConnectionsThatAreHeld(t *testing.T) {
	address := start(t, serve.NewRegistry())
	held := dial(t, address, many)
	for _, c := range held {
		_, _ = io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: x\r\n") // and never finishes it
	}
	healthy(t, address)
	require.LessOrEqual(t, open(t, held), 256, "one is answered once so many others are closed") // later all are closed, as they send nothing more
	healthy(t, address)

	slow := dial(t, address, 1)[0]
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if _, err := io.WriteString(slow, "X"); err != nil {
				return
			}
			select {
			case <-time.After(50 * time.Millisecond):
			case <-t.Context().Done():
				return
			}
		}
	}()
	require.Eventually(t, func() bool { return open(t, []net.Conn{slow}) == 0 }, 5*time.Minute, 10*time.Millisecond, "a request that never ends is cut off")
	<-ended
}
