package fetch

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/fetch/s3store"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// takesAnything makes the fake take uploads of small files, whatever is in them.
func (b *bed) takesAnything(w http.ResponseWriter, r *http.Request, key string) bool {
	if r.Method != http.MethodPut {
		return false
	}
	data, _ := io.ReadAll(r.Body)
	if size, err := strconv.Atoi(r.Header.Get("X-Amz-Decoded-Content-Length")); err == nil {
		_, data, _ = bytes.Cut(data, []byte("\r\n")) // of a chunk
		data = data[:size]
	}
	b.fake.put(key, data)
	w.Header().Set("ETag", `"e"`)
	return true
}

// mirroring runs a mirror of a directory that was filled from s3://bucket/p/, until the
// returned function ends it.
func (b *bed) mirroring(dir string) (*Progress, func()) {
	b.t.Helper()
	target, err := ParseSource("s3://bucket/p/")
	require.NoError(b.t, err)
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	progress := NewProgress(ReadyAfter{})
	ctx, cancel := context.WithCancel(b.t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Mirror(ctx, MirrorConfig{
			PutConfig: PutConfig{Dir: dir, Target: target, Back: true, S3: s3store.Config{Endpoint: b.fake.URL, Attempts: 1, Stall: 5 * time.Second}, Memory: 64 * store.MiB, Log: quiet},
			Every:     10 * time.Millisecond, ID: "claim",
		}, progress)
	}()
	return progress, func() {
		cancel()
		require.Error(b.t, <-ended)
	}
}

// synced waits until a mirror has seen since now that all is uploaded.
func synced(t *testing.T, p *Progress) protocol.Status {
	t.Helper()
	passes := p.Status(time.Now()).Passes
	require.Eventually(t, func() bool { return p.Status(time.Now()).Passes >= passes+2 }, time.Minute, 5*time.Millisecond, "%+v", p.Status(time.Now()))
	return p.Status(time.Now())
}

func TestMirror(t *testing.T) {
	b := newBed(t)
	var denied atomic.Bool
	puts := []string{}
	b.fake.hook = func(w http.ResponseWriter, r *http.Request, key string) bool {
		if r.Method == http.MethodPut && denied.Load() {
			w.WriteHeader(http.StatusForbidden)
			return true
		}
		if !b.takesAnything(w, r, key) {
			return false
		}
		b.fake.mu.Lock()
		puts = append(puts, key)
		b.fake.mu.Unlock()
		return true
	}
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write("a", "one")
	write("b", "two")
	p, end := b.mirroring(dir)
	status := synced(t, p)
	require.Equal(t, protocol.StateMirroring, status.State)
	require.EqualValues(t, 2, status.FilesDone)
	require.Equal(t, "claim", status.ID)
	b.fake.mu.Lock()
	require.ElementsMatch(t, []string{"p/a", "p/b"}, puts)
	puts = nil
	b.fake.mu.Unlock()
	denied.Store(true)
	// What cannot be uploaded is behind, says why, and is tried again for ever.
	write("b", "changed")
	require.Eventually(t, func() bool { s := p.Status(time.Now()); return s.FilesTotal-s.FilesDone == 1 && s.Message != "" }, time.Minute, 5*time.Millisecond)
	passes := p.Status(time.Now()).Passes
	require.Contains(t, p.Status(time.Now()).Message, "1 of 1 changed files are not uploaded, which is tried again")
	denied.Store(false)
	require.Eventually(t, func() bool { return p.Status(time.Now()).Passes > passes }, time.Minute, 5*time.Millisecond)
	end()
	require.Equal(t, "changed", string(b.fake.objects["p/b"].data))
	// The next process sends nothing again, and finds what was changed while there was none,
	// whatever time the file tells.
	puts = nil
	write("a", "One")
	require.NoError(t, os.Chtimes(filepath.Join(dir, "a"), time.Unix(1, 0), time.Unix(1, 0)))
	p, end = b.mirroring(dir)
	synced(t, p)
	end()
	require.Equal(t, []string{"p/a"}, puts)
	require.Equal(t, "One", string(b.fake.objects["p/a"].data))
}

// A file that is as it came is not sent over what the source has by now.
func TestPutBackLeavesWhatDidNotChange(t *testing.T) {
	b := newBed(t)
	b.fake.put("d/a", []byte("one"))
	b.fake.put("d/b", []byte("two"))
	_, _, err := b.run("s3://bucket/d/")
	require.NoError(t, err)
	b.fake.put("d/a", []byte("by somebody else"))
	require.NoError(t, os.WriteFile(filepath.Join(b.dest, "b"), []byte("mine"), 0o600))
	b.fake.hook = b.takesAnything
	target, err := ParseSource("s3://bucket/d/")
	require.NoError(t, err)
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	_, err = Put(t.Context(), PutConfig{Dir: b.dest, Target: target, Back: true, S3: s3store.Config{Endpoint: b.fake.URL, Attempts: 1}, Memory: 64 * store.MiB, Log: quiet}, NewProgress(ReadyAfter{}))
	require.NoError(t, err)
	require.Equal(t, "by somebody else", string(b.fake.objects["d/a"].data))
	require.Equal(t, "mine", string(b.fake.objects["d/b"].data))
}
