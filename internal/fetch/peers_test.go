package fetch

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/peer"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// rack is a directory that was loaded from the source, and others that copy it.
type rack struct {
	*bed
	want     map[string][]byte
	index    string
	identity *peer.Identity
	origin   string
	stall    time.Duration // how long a copy waits for a silent peer
}

func identityOf(t *testing.T, token, dataset string) *peer.Identity {
	t.Helper()
	out, err := peer.NewIdentity([]byte(token), dataset)
	require.NoError(t, err)
	return out
}

var goodToken = strings.Repeat("0123456789abcdef", 4)

func newRack(t *testing.T) *rack {
	t.Helper()
	r := &rack{bed: newBed(t), identity: identityOf(t, goodToken, "set"), stall: patient}
	r.want = r.dataset()
	r.change = func(c *Config) { c.Index = true }
	_, progress, err := r.run("s3://bucket/set/")
	require.NoError(t, err)
	r.index, r.origin = progress.Status(time.Now()).Index, r.dest
	require.Regexp(t, `^sha256:[0-9a-f]{64}$`, r.index)
	r.fake.got()
	return r
}

func quiet() *logrus.Logger {
	out := logrus.New()
	out.SetOutput(io.Discard)
	return out
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return l
}

// background runs a server until the test, or the returned function, ends it.
func background(t *testing.T, serve func(context.Context) error) context.CancelFunc {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	return stop
}

// honest starts a peer that serves a directory as the program does, and returns its address.
func (r *rack) honest(dir string) string {
	l := listen(r.t)
	background(r.t, func(ctx context.Context) error {
		return ServePeers(ctx, ServePeersConfig{Dir: dir, Listener: l, Identity: r.identity, Stall: patient, Log: quiet()}, NewProgress(ReadyAfter{}))
	})
	return l.Addr().String()
}

// faulty starts a peer of the first directory whose server was altered by change, and returns its address.
func (r *rack) faulty(change func(s *peer.Server, stop func())) string {
	root, err := os.OpenRoot(r.origin)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = root.Close() })
	entries, err := readManifest(r.origin)
	require.NoError(r.t, err)
	index, err := completeIndex(root, entries)
	require.NoError(r.t, err)
	data, digest, err := index.Encode()
	require.NoError(r.t, err)
	require.Equal(r.t, r.index, digest)
	s := &peer.Server{Index: data, Open: opens(root, entries), Log: quiet()}
	l := listen(r.t)
	ready := make(chan func(), 1)
	stop := background(r.t, func(ctx context.Context) error {
		change(s, <-ready)
		return s.Serve(ctx, l, r.identity)
	})
	ready <- stop
	return l.Addr().String()
}

// copyFrom copies into a new directory.
func (r *rack) copyFrom(peers ...string) (*Progress, error) {
	r.t.Helper()
	r.dest = filepath.Join(r.t.TempDir(), "copy")
	return r.copyMore(r.identity, r.index, peers...)
}

// copyMore copies into the existing directory.
func (r *rack) copyMore(identity *peer.Identity, index string, peers ...string) (*Progress, error) {
	r.t.Helper()
	r.change = func(c *Config) {
		c.Stall = r.stall
		from, err := peer.New(peer.Config{Peers: peers, Index: index, Identity: identity, Stall: c.Stall})
		require.NoError(r.t, err)
		*c = FromPeers(*c, from)
	}
	_, progress, err := r.run("s3://bucket/set/")
	return progress, err
}

// fromSource completes the directory from the source, and returns how often each object was read.
func (r *rack) fromSource() map[string]int {
	r.t.Helper()
	r.change = func(c *Config) { c.Sync = true }
	_, _, err := r.run("s3://bucket/set/")
	require.NoError(r.t, err)
	r.mustHave(r.want)
	return r.fake.got()
}

// nothingWrong requires that each file that exists under its final name has the right content.
func (r *rack) nothingWrong() {
	r.t.Helper()
	for path, data := range r.want {
		if got, err := os.ReadFile(filepath.Join(r.dest, path)); err == nil {
			require.Equal(r.t, md5Hex(data), md5Hex(got), path)
		}
	}
}

func TestPeersCopyWithoutTheSource(t *testing.T) {
	r := newRack(t)
	r.fake.hook = func(_ http.ResponseWriter, q *http.Request, _ string) bool {
		t.Errorf("the source is asked: %s", q.URL)
		return false
	}
	first := r.honest(r.origin)
	progress, err := r.copyFrom(first)
	require.NoError(t, err)
	for path, e := range r.mustHave(r.want) {
		require.Equal(t, store.CheckSHA256, e.Check, path)
		require.Equal(t, md5Hex(r.want[path]), e.ETag, "what the source says of it")
	}
	require.Equal(t, r.index, progress.Status(time.Now()).Index, "the copy can be copied")

	second := r.honest(r.dest)
	_, err = r.copyFrom(first, second)
	require.NoError(t, err)
	r.mustHave(r.want)

	// A run from the source finds the copy complete.
	r.change = func(*Config) {}
	_, progress, err = r.run("s3://bucket/set/")
	require.NoError(t, err)
	require.Contains(t, progress.Status(time.Now()).Message, "complete already")
	r.fake.hook = nil
	require.Empty(t, r.fromSource(), "the listing agrees with every file")
}

func TestPeersThatLieCostARetry(t *testing.T) {
	r := newRack(t)
	other := filepath.Join(t.TempDir(), "other")
	var lies atomic.Int64
	lie := r.faulty(func(s *peer.Server, _ func()) {
		honest := s.Open
		s.Open = func(path string) (*os.File, error) {
			if path != "large" && path != "d/e/middle" {
				return honest(path)
			}
			lies.Add(1)
			content := make([]byte, len(r.want[path]))
			if err := os.WriteFile(other, content, 0o600); err != nil {
				return nil, err
			}
			return os.Open(other)
		}
	})
	_, err := r.copyFrom(lie)
	require.ErrorContains(t, err, "could not be fetched")
	require.NotZero(t, lies.Load())
	r.nothingWrong()
	require.NoFileExists(t, filepath.Join(r.dest, "large"))
	// Only the missing files are fetched from the source.
	gets := r.fromSource()
	require.Len(t, gets, 2)
	require.Contains(t, gets, "set/large")

	_, err = r.copyFrom(lie, r.honest(r.origin))
	require.NoError(t, err)
	r.mustHave(r.want)
}

func TestPeersWithDamagedFiles(t *testing.T) {
	r := newRack(t)
	_, err := r.copyFrom(r.honest(r.origin))
	require.NoError(t, err)
	damaged := r.dest
	// A failing disk leaves the times unchanged, too.
	name := filepath.Join(damaged, "large")
	info, err := os.Stat(name)
	require.NoError(t, err)
	file, err := os.OpenFile(name, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.WriteAt([]byte{r.want["large"][20<<20] ^ 1}, 20<<20)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	require.NoError(t, os.Chtimes(name, info.ModTime(), info.ModTime()))

	address := r.honest(damaged)
	_, err = r.copyFrom(address)
	require.ErrorContains(t, err, "could not be fetched")
	r.nothingWrong()
	require.Equal(t, map[string]int{"set/large": 3}, r.fromSource())
	_, err = r.copyFrom(address, r.honest(r.origin))
	require.NoError(t, err)
	r.mustHave(r.want)
}

func TestPeersThatStallOrDie(t *testing.T) {
	for name, fault := range map[string]func(s *peer.Server, stop func()){
		"stalls": func(s *peer.Server, _ func()) {
			var sent atomic.Int64
			s.Throttle = func(ctx context.Context, n int64) error {
				if sent.Add(n) > 2<<20 {
					<-ctx.Done()
				}
				return context.Cause(ctx)
			}
		},
		"dies": func(s *peer.Server, stop func()) {
			var sent atomic.Int64
			s.Throttle = func(_ context.Context, n int64) error {
				if sent.Add(n) > 2<<20 {
					stop()
				}
				return nil
			}
		},
		"forgets": func(s *peer.Server, _ func()) {
			s.Open = func(string) (*os.File, error) { return nil, os.ErrNotExist }
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRack(t)
			if name == "stalls" {
				r.stall = 2 * time.Second
			}
			_, err := r.copyFrom(r.faulty(fault), r.honest(r.origin))
			require.NoError(t, err)
			r.mustHave(r.want)

			_, err = r.copyFrom(r.faulty(fault))
			var failed *store.Error
			require.ErrorAs(t, err, &failed)
			require.True(t, failed.Retryable, "%v", err)
			r.nothingWrong()
			r.fromSource()
		})
	}
}

func TestPeersOfOthers(t *testing.T) {
	r := newRack(t)
	address := r.honest(r.origin)
	r.dest = filepath.Join(t.TempDir(), "copy")
	for name, identity := range map[string]*peer.Identity{
		"wrong token":   identityOf(t, strings.Repeat("x", 64), "set"),
		"wrong dataset": identityOf(t, goodToken, "other"),
	} {
		_, err := r.copyMore(identity, r.index, address)
		require.ErrorContains(t, err, "no peer has the index", name)
	}
	_, err := r.copyMore(r.identity, "sha256:"+strings.Repeat("0", 64), address)
	require.ErrorContains(t, err, "is wanted")
	require.NoFileExists(t, filepath.Join(r.dest, destination.CompleteFile))

	_, err = peer.NewIdentity([]byte("short"), "set")
	require.ErrorContains(t, err, "openssl rand")
	require.NotContains(t, err.Error(), "short")
}

// If the disk alters a file after the fetch and before the index is computed, the run fails:
// peers would copy the damage.
func TestIndexIsOfWhatWasFetched(t *testing.T) {
	b := newBed(t)
	require.ErrorContains(t, ServePeers(t.Context(), ServePeersConfig{Dir: t.TempDir()}, NewProgress(ReadyAfter{})), "fetch into it first")
	b.fake.put("set/a", []byte("content"))
	_, progress, err := b.run("s3://bucket/set/")
	require.NoError(t, err)
	require.Empty(t, progress.Status(time.Now()).Index, "nobody asked for it")
	require.ErrorContains(t, ServePeers(t.Context(), ServePeersConfig{Dir: b.dest}, NewProgress(ReadyAfter{})), "--index")

	name := filepath.Join(b.dest, "a")
	info, err := os.Stat(name)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(name, []byte("CONTENT"), 0o644))
	require.NoError(t, os.Chtimes(name, info.ModTime(), info.ModTime()))
	b.change = func(c *Config) { c.Index = true }
	_, _, err = b.run("s3://bucket/set/")
	require.ErrorIs(t, err, errDisk)

	require.NoError(t, os.WriteFile(name, []byte("content"), 0o644))
	require.NoError(t, os.Chtimes(name, info.ModTime(), info.ModTime()))
	_, progress, err = b.run("s3://bucket/set/")
	require.NoError(t, err)
	first := progress.Status(time.Now())
	require.Equal(t, protocol.StateComplete, first.State)
	_, progress, err = b.run("s3://bucket/set/")
	require.NoError(t, err)
	require.NotEmpty(t, first.Index)
	require.Equal(t, first.Index, progress.Status(time.Now()).Index)
}

// A refresh that finds an artifact unchanged reports the index of the current version, not that of the empty directory
// in which it would have created the next one.
func TestIndexOfAnUnchangedArtifact(t *testing.T) {
	b := newVersionBed(t)
	b.few("a")
	b.change = func(c *Config) {
		c.Source.URL, c.Sync, c.Index = "oci://registry/artifact", true, true
		c.Store = packedStore{Store: c.Store, archives: func() {}}
	}
	first, err := b.load()
	require.NoError(t, err)
	require.NotEmpty(t, first.Index)
	again, err := b.load()
	require.NoError(t, err)
	require.Equal(t, first.Index, again.Index)
}
