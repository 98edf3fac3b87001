package fetch

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
)

// stream runs a loader that is ready after one file, and returns its progress. It calls meanwhile for
// each object that is fetched.
func (b *versionBed) stream(meanwhile func(p *Progress, key string)) (*Progress, error) {
	b.t.Helper()
	config := b.config("s3://bucket/set/")
	config.Dest, config.Parallel = b.root, 1
	progress := NewProgress(ReadyAfter{Files: 1})
	b.fake.hook = func(_ http.ResponseWriter, r *http.Request, key string) bool {
		if r.Method == http.MethodGet && key != "" && r.URL.Query().Get("list-type") == "" {
			meanwhile(progress, key)
		}
		return false
	}
	_, err := RunVersions(b.t.Context(), b.root, config, progress)
	b.fake.hook = nil
	return progress, err
}

// few puts small files into the source.
func (b *versionBed) few(names ...string) {
	for _, name := range names {
		b.fake.put("set/"+name, []byte(name))
	}
}

// becomesReady reports whether a loader is ready within some time.
func becomesReady(p *Progress, within time.Duration) bool {
	for end := time.Now().Add(within); time.Now().Before(end) && !p.Ready(); {
		time.Sleep(time.Millisecond)
	}
	return p.Ready()
}

// Readers of the first version get the files that have arrived. Readers of a later version get the
// version before until the later one is whole, so a streaming loader is not ready before.
func TestLaterVersionIsReadyWhenItIsCurrent(t *testing.T) {
	b := newVersionBed(t)
	b.few("a", "b")
	early := false
	progress, err := b.stream(func(p *Progress, key string) {
		if key == "set/b" {
			early = becomesReady(p, time.Minute)
		}
	})
	require.NoError(t, err)
	require.True(t, early, "the first version streams")
	require.True(t, progress.Ready())

	b.few("c")
	late := false
	progress, err = b.stream(func(p *Progress, _ string) {
		late = becomesReady(p, 100*time.Millisecond) || p.Status(time.Now()).Ready // a and b have been linked
		if done := p.Status(time.Now()).FilesDone; done != 2 {
			t.Errorf("%d files are done", done)
		}
	})
	require.NoError(t, err)
	require.False(t, late, "readers would get version 1, which lacks c")
	require.Equal(t, "2", b.current())
	require.True(t, progress.Ready())
	require.True(t, progress.Status(time.Now()).Ready)

	progress, err = b.stream(func(*Progress, string) { t.Error("nothing is new") })
	require.NoError(t, err)
	require.True(t, progress.Ready(), "the current one is what the source has")
	require.Equal(t, "2", b.current())
}

// A version that is complete but does not become the current one is not ready either.
func TestVersionThatIsNotSwitchedToIsNotReady(t *testing.T) {
	b := newVersionBed(t)
	b.few("a")
	_, err := b.load()
	require.NoError(t, err)

	b.few("b", "x//y")
	progress, err := b.stream(func(*Progress, string) {})
	require.NoError(t, err)
	require.NotZero(t, progress.Refused())
	require.Equal(t, "1", b.current())
	require.False(t, progress.Ready())

	b.fake.delete("set/x//y")
	require.NoError(t, os.Mkdir(filepath.Join(b.root, protocol.CurrentFile+".new"), 0o755))
	progress, err = b.stream(func(*Progress, string) {})
	require.ErrorContains(t, err, "make version 2 the current one")
	require.Equal(t, "1", b.current())
	require.False(t, progress.Ready())
}
