//go:build s3

package suite

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A relay forwards connections to a peer, which uses TLS, and counts the bytes that the peer sends.
type relay struct {
	address string
	to      string
	sent    atomic.Int64
	open    atomic.Int64 // connections
	// full is called once, when more than after bytes have been sent.
	after int64
	full  func()
}

// addresses counts the calls of ownAddress.
var addresses atomic.Int32

// ownAddress returns an address for a process that is started later. No other process on this machine
// uses it, whereas a port of 127.0.0.1 could be in use by then.
func ownAddress(t *testing.T) string {
	t.Helper()
	n := int(addresses.Add(1))
	free, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", 1+os.Getpid()%250, 1+os.Getpid()/250%250, 1+n%250))
	require.NoError(t, err)
	defer func() { require.NoError(t, free.Close()) }()
	return free.Addr().String()
}

// newRelay starts a relay to an address for the peer.
func newRelay(t *testing.T) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &relay{address: listener.Addr().String(), to: ownAddress(t)}
	t.Cleanup(func() { require.NoError(t, listener.Close()) })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go r.pass(client)
		}
	}()
	return r
}

func (r *relay) pass(client net.Conn) {
	r.open.Add(1)
	defer r.open.Add(-1)
	defer client.Close()
	peer, err := net.Dial("tcp", r.to)
	if err != nil {
		return
	}
	defer peer.Close()
	go func() {
		_, _ = io.Copy(peer, client)
		_ = peer.Close() // the client closed the connection
	}()
	_, _ = io.Copy(client, io.TeeReader(peer, r))
}

func (r *relay) Write(data []byte) (int, error) {
	n := int64(len(data))
	if sent := r.sent.Add(n); r.full != nil && sent > r.after && sent-n <= r.after {
		r.full()
	}
	return len(data), nil
}

// A copying is a test of a loader that copies a source's content from a peer.
type copying struct {
	*bed
	source tree
	size   int64
	relay  *relay
	args   []string
}

// newCopying loads the source for a peer and serves it.
func newCopying(b *bed) *copying {
	b.t.Helper()
	c := &copying{bed: b, source: tree{"large": noise(950, 34<<20)}, relay: newRelay(b.t)}
	for i := range 60 {
		c.source[fmt.Sprintf("d%d/%02d", i%7, i)] = noise(uint64(951+i), 60<<10+i)
	}
	for _, content := range c.source {
		c.size += int64(len(content))
	}
	b.put(c.source)
	secrets, first := b.t.TempDir(), filepath.Join(b.t.TempDir(), "first")
	require.NoError(b.t, os.WriteFile(filepath.Join(secrets, "token"), []byte(strings.Repeat("0123456789abcdef", 4)), 0o600))
	identity := []string{"--peers-dir", secrets, "--peers-dataset", "set", "--progress", "none"}
	o := b.launch("--endpoint", b.proxy.Endpoint, "--index", "--versions", first, b.url(""), first).wait()
	require.Zero(b.t, o.code, o.stderr)
	require.NotEmpty(b.t, o.result.Index)
	peer := b.launch(append([]string{"serve", "--address", c.relay.to, "--versions", first, first}, identity...)...)
	b.t.Cleanup(func() { _ = peer.cmd.Wait() }) // the end of the test has killed it
	require.Eventually(b.t, func() bool {
		connection, err := net.Dial("tcp", c.relay.to)
		return err == nil && connection.Close() == nil
	}, longest, 10*time.Millisecond)
	c.args = slices.Concat(identity, []string{"--peer", c.relay.address, "--peer-index", o.result.Index, "--versions", b.dest, b.url(""), b.dest})
	b.proxy.Forget()
	return c
}

// known returns how many verified bytes the destination has, by the manifest and the journal.
func (c *copying) known() int64 {
	c.t.Helper()
	return known(c.t, filepath.Join(c.version(1), ".flexlvm"))
}

// known returns how many bytes the manifest and the journal of a directory record.
func known(t *testing.T, control string) int64 {
	t.Helper()
	entered, total := map[string]bool{}, int64(0)
	lines(t, filepath.Join(control, "manifest.jsonl"), func(e entry) {
		if !entered[e.Path] {
			entered[e.Path] = true
			total += e.Bytes
		}
	})
	type note struct {
		Path, Temp     string
		Offset, Length int64
	}
	temps, pieces := map[string]string{}, map[string]map[int64]int64{}
	lines(t, filepath.Join(control, "journal.jsonl"), func(n note) {
		if temps[n.Path] != n.Temp {
			temps[n.Path], pieces[n.Path] = n.Temp, map[int64]int64{}
		}
		pieces[n.Path][n.Offset] = n.Length
	})
	for path, of := range pieces {
		for _, length := range of {
			if !entered[path] {
				total += length
			}
		}
	}
	return total
}

// load runs a loader, calls during with it, and checks what was transferred and what the destination
// has.
func (c *copying) load(during func(*running)) outcome {
	c.t.Helper()
	known, before := c.known(), c.relay.sent.Load()
	r := c.launch(c.args...)
	during(r)
	o := r.wait()
	require.Eventually(c.t, func() bool { return c.relay.open.Load() == 0 }, longest, time.Millisecond, "else it counts for the next")
	came := c.relay.sent.Load() - before
	const own = 256 << 10 // for the index and TLS
	require.LessOrEqual(c.t, came, (c.size-known)*102/100+own, "%d of %d bytes were there, and were not to be fetched again", known, c.size)
	if _, err := os.Stat(c.version(1)); !os.IsNotExist(err) { // else it was killed before it created the directory
		for path, content := range filesIn(c.t, c.version(1)) {
			require.True(c.t, c.source[path] == content, "%s is not what it should be", path)
		}
	}
	require.Empty(c.t, c.proxy.Requests(), "the source is asked for nothing")
	return o
}

func (c *copying) requireComplete(o outcome) {
	c.t.Helper()
	require.Zero(c.t, o.code, o.stderr)
	c.requireVersion(1, c.source, "when it is complete")
	left, err := os.ReadDir(filepath.Join(c.version(1), ".flexlvm/tmp"))
	require.NoError(c.t, err)
	require.Empty(c.t, left)
}

// A copying loader that is killed at any moment resumes where it was.
func TestCopyKilledAtAnyMoment(t *testing.T) {
	c := newCopying(newBedFor(t, longest+killingTime()))
	began := time.Now()
	c.requireComplete(c.load(func(*running) {}))
	usual, kills, goneOn := time.Since(began), 0, 0
	require.NoError(t, os.RemoveAll(c.version(1)))
	for began := time.Now(); goesOn(kills, began) || goneOn == 0; {
		if known := c.known(); known > 0 {
			goneOn++
		}
		o := c.load(func(r *running) {
			timer := time.AfterFunc(rand.N(usual), func() { _ = r.cmd.Process.Kill() })
			t.Cleanup(func() { timer.Stop() })
		})
		if o.code == 0 {
			c.requireComplete(o)
			require.NoError(t, os.RemoveAll(c.version(1)))
			continue
		}
		require.Equal(t, -1, o.code, o.stderr)
		kills++
	}
	t.Logf("%d kills; %d times something was there", kills, goneOn)
	c.requireComplete(c.load(func(*running) {}))
}

// Others use up the space while a loader copies.
func TestCopyWithoutRoom(t *testing.T) {
	b := newBed(t)
	b.small("size=48m")
	c := newCopying(b)
	c.relay.after, c.relay.full = 1<<20, b.fill
	o := c.load(func(*running) {})
	require.Equal(t, 1, o.code, o.stderr)
	require.Contains(t, o.result.Message, "no room left; make the volume larger or select less")
	require.False(t, o.result.Retryable)
	require.NoFileExists(t, filepath.Join(b.version(1), ".flexlvm/complete"))
	require.NoError(t, os.Remove(filepath.Join(b.dest, "theirs")))
	c.requireComplete(c.load(func(*running) {}))
}

// lines calls each with every complete line of a JSON lines file, if it exists.
func lines[T any](t *testing.T, name string, each func(T)) {
	t.Helper()
	file, err := os.Open(name)
	if os.IsNotExist(err) {
		return
	}
	require.NoError(t, err)
	defer file.Close()
	for in := bufio.NewReader(file); ; {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			return
		}
		require.NoError(t, err)
		var one T
		require.NoError(t, json.Unmarshal(line, &one))
		each(one)
	}
}
