package fetch

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/fetch/dirstore"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/fetch/s3store"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// takesAnything makes the fake server accept any upload of a small file.
func (b *bed) takesAnything(w http.ResponseWriter, r *http.Request, key string) bool {
	if r.Method != http.MethodPut {
		return false
	}
	data, _ := io.ReadAll(r.Body)
	if size, err := strconv.Atoi(r.Header.Get("X-Amz-Decoded-Content-Length")); err == nil {
		_, data, _ = bytes.Cut(data, []byte("\r\n")) // skips the header of a chunk
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
			PutConfig: PutConfig{Dir: dir, Target: target, Back: true, S3: s3store.Config{Endpoint: b.fake.URL, Attempts: 1, Stall: patient}, Memory: 64 * store.MiB, Log: quiet},
			Every:     10 * time.Millisecond, ID: "claim",
		}, progress)
	}()
	return progress, func() {
		cancel()
		require.Error(b.t, <-ended)
	}
}

// synced waits until a pass that began after the call has found everything uploaded.
func synced(t *testing.T, p *Progress) protocol.Status {
	t.Helper()
	passes := p.Status(time.Now()).Passes
	require.Eventually(t, func() bool { return p.Status(time.Now()).Passes >= passes+2 }, 10*time.Minute, 5*time.Millisecond, "%+v", p.Status(time.Now()))
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
	require.Eventually(t, func() bool { return p.Status(time.Now()).FilesDone == 2 }, 10*time.Minute, 5*time.Millisecond) // each pass counts from the start
	require.Equal(t, "claim", status.ID)
	b.fake.mu.Lock()
	require.ElementsMatch(t, []string{"p/a", "p/b"}, puts)
	puts = nil
	b.fake.mu.Unlock()
	denied.Store(true)
	// A file that cannot be uploaded is not counted as done, the message has the reason, and the
	// upload is retried forever.
	write("b", "changed")
	require.Eventually(t, func() bool { s := p.Status(time.Now()); return s.FilesTotal-s.FilesDone == 1 && s.Message != "" }, 10*time.Minute, 5*time.Millisecond)
	passes := p.Status(time.Now()).Passes
	// The other file also counts as changed if it was written just now.
	require.Regexp(t, "1 of [12] changed files could not be uploaded and are retried", p.Status(time.Now()).Message)
	denied.Store(false)
	require.Eventually(t, func() bool { return p.Status(time.Now()).Passes > passes }, 10*time.Minute, 5*time.Millisecond)
	end()
	require.Equal(t, "changed", string(b.fake.objects["p/b"].data))
	// The next mirror sends nothing again, and finds files that were changed while no mirror ran,
	// whatever their modification time.
	puts = nil
	write("a", "One")
	require.NoError(t, os.Chtimes(filepath.Join(dir, "a"), time.Unix(1, 0), time.Unix(1, 0)))
	p, end = b.mirroring(dir)
	synced(t, p)
	end()
	require.Equal(t, []string{"p/a"}, puts)
	require.Equal(t, "One", string(b.fake.objects["p/a"].data))
}

// An unchanged file is not uploaded over a newer object of the source.
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

// Only the first write to a mapped file after each sync of the file system changes the file's times. The
// mirror uploads every write nevertheless.
func TestMirrorOfMappedFile(t *testing.T) {
	b := newBed(t)
	b.fake.hook = b.takesAnything
	dir := dirOnDisk(t)
	file, err := os.OpenFile(filepath.Join(dir, "a"), os.O_RDWR|os.O_CREATE, 0o600)
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	require.NoError(t, file.Truncate(4096))
	data, err := unix.Mmap(int(file.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	defer func() { _ = unix.Munmap(data) }()
	data[0] = 'A'
	_, end := b.mirroring(dir)
	defer end()
	isThere := func() bool { return strings.HasPrefix(b.at("p/a"), string(data[:1])) }
	remembered := func() bool {
		text, err := os.ReadFile(filepath.Join(dir, mirroredFile))
		return err == nil && strings.Contains(string(text), `"path":"a"`)
	}
	require.Eventually(t, func() bool { return isThere() && remembered() }, 10*time.Minute, 5*time.Millisecond)
	data[0] = 'B'
	require.Eventually(t, isThere, 10*time.Minute, 5*time.Millisecond)
}

// dirOnDisk returns a directory that is removed after the test. It is not on tmpfs, which does not
// update the times of mapped files.
func dirOnDisk(t *testing.T) string {
	t.Helper()
	for _, parent := range []string{os.TempDir(), "/var/tmp", "."} {
		var stat unix.Statfs_t
		if err := unix.Statfs(parent, &stat); err != nil || stat.Type == unix.TMPFS_MAGIC {
			continue
		}
		dir, err := os.MkdirTemp(parent, "mirror-")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
		return dir
	}
	require.Fail(t, "every directory for temporary files is on tmpfs; set TMPDIR to one on a disk")
	return ""
}

// A file that changed only recently may have been written to since without a trace, so the mirror does
// not remember it as uploaded.
func TestMirrorRemembersWhatHasSettled(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a"), []byte("one"), 0o600))
	m := &mirror{upload: &upload{PutConfig: PutConfig{Dir: dir, Target: store.Source{Kind: store.KindS3}}}, known: map[string]string{}}
	require.NoError(t, m.connectLocal(t.Context()))
	files, _, err := m.list(t.Context())
	require.NoError(t, err)
	changed := dirstore.ChangeTime(files[0].ETag)
	info, err := os.Stat(filepath.Join(dir, "a"))
	require.NoError(t, err)
	require.Equal(t, info.Sys().(*syscall.Stat_t).Ctim.Nano(), changed.UnixNano())
	m.begun = changed.Add(settleTime - 1)
	m.recordUploaded(files[0])
	require.Empty(t, m.known)
	m.begun = changed.Add(settleTime)
	m.recordUploaded(files[0])
	require.Equal(t, map[string]string{"a": files[0].ETag}, m.known)
}

// remembers records in a directory that a mirror has uploaded file a during the given boot.
func (b *bed) remembers(dir, boot string) {
	b.t.Helper()
	local, err := dirstore.New(store.Source{Kind: store.KindFile, Key: dir + "/", Prefix: dir + "/"})
	require.NoError(b.t, err)
	o, _, err := local.Stat(b.t.Context(), dir+"/a", "")
	require.NoError(b.t, err)
	require.NoError(b.t, os.MkdirAll(filepath.Join(dir, store.ControlDir), 0o700))
	known := fmt.Sprintf(`{"etag":"%s %s bucket/p/"}`+"\n"+`{"path":"a","etag":%q}`+"\n", boot, b.fake.URL, o.ETag)
	require.NoError(b.t, os.WriteFile(filepath.Join(dir, mirroredFile), []byte(known), 0o600))
}

// After a power cut a file may have its old times and size but other content, so all files are compared.
func TestMirrorComparesAllAfterABoot(t *testing.T) {
	b := newBed(t)
	b.fake.hook = b.takesAnything
	dir := b.dest
	b.fake.put("p/a", []byte("old"))
	_, _, err := b.run("s3://bucket/p/")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a"), []byte("new"), 0o600))
	b.remembers(dir, "another-boot")
	p, end := b.mirroring(dir)
	synced(t, p)
	end()
	require.Equal(t, "new", b.at("p/a"))

	recalled := func(boot string) map[string]string {
		m := &mirror{upload: &upload{PutConfig: PutConfig{Dir: dir, Target: store.Source{Bucket: "bucket"}, S3: s3store.Config{Endpoint: b.fake.URL}}, prefix: "p/"}, known: map[string]string{}}
		err := m.readLog(boot)
		m.closeLog()
		require.Equal(t, boot == "", err != nil)
		return m.known
	}
	require.NoError(t, os.RemoveAll(filepath.Join(dir, store.ControlDir)))
	b.remembers(dir, "this")
	require.Empty(t, recalled(""), "nobody knows which boot it is")
	require.Len(t, recalled("this"), 1)
	require.Empty(t, recalled("next"))
	require.Empty(t, recalled("this"), "what was noted before is of two boots ago")
}

// The mirror's records take space in the user's volume, so records of deleted files are dropped.
func TestMirrorForgetsWhatIsGone(t *testing.T) {
	b := newBed(t)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a"), []byte("one"), 0o600))
	b.remembers(dir, "this")
	name := filepath.Join(dir, mirroredFile)
	short, err := os.ReadFile(name)
	require.NoError(t, err)
	m := &mirror{upload: &upload{PutConfig: b.back(dir), progress: NewProgress(ReadyAfter{})}, known: map[string]string{}}
	require.NoError(t, m.connect(t.Context()))
	for _, c := range []struct {
		more int
		long bool
	}{{minRewriteLines - 1, true}, {minRewriteLines, false}} {
		long := bytes.Clone(short)
		for i := range c.more {
			long = fmt.Appendf(long, `{"path":"gone/%d","etag":"e"}`+"\n", i)
		}
		require.NoError(t, os.WriteFile(name, long, 0o600))
		m.known, m.lines = map[string]string{}, 0
		require.NoError(t, m.readLog("this"))
		m.pass(t.Context())
		require.EqualValues(t, 1, m.progress.Status(time.Now()).FilesDone)
		require.Empty(t, b.at("p/a"), "it is known to be there")
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		if c.long {
			require.Equal(t, long, text)
		} else {
			require.Equal(t, string(short), string(text))
			m.write(mirrored{Path: "b", ETag: "e"})
		}
		m.closeLog()
		require.NoFileExists(t, name+".new")
	}
	m.known = map[string]string{}
	require.NoError(t, m.readLog("this"))
	m.closeLog()
	require.Len(t, m.known, 2, "it goes on in the new file")
	for i := range minRewriteLines {
		m.known[fmt.Sprintf("gone/%d", i)] = "e"
	}
	m.shorten([]store.Object{{Path: "b", ETag: "e"}})
	require.Equal(t, map[string]string{"b": "e"}, m.known, "also where its file cannot be written")
}

// The final upload before the data is deleted compares all files and trusts no record. Each request for
// it causes only one such pass: anyone who reaches the port can send one.
func TestMirrorComparesAllAtTheEnd(t *testing.T) {
	b := newBed(t)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a"), []byte("one"), 0o600))
	b.remembers(dir, bootID())
	var looked atomic.Int64 // requests for the object
	b.fake.hook = func(w http.ResponseWriter, r *http.Request, key string) bool {
		if key == "p/a" {
			looked.Add(1)
		}
		return b.takesAnything(w, r, key)
	}
	p, end := b.mirroring(dir)
	defer end()
	ask := func(final string) {
		r := httptest.NewRequest(http.MethodGet, protocol.ProgressPath+"?"+url.Values{protocol.FinalQuery: {final}}.Encode(), nil)
		ProgressHandler(p).ServeHTTP(httptest.NewRecorder(), r)
	}
	run := synced(t, p).Run
	for _, final := range []string{"x", "another/7", run, run + "/", run + "/x", run + "/007", run + "/" + strings.Repeat("7", 1000), "/7"} {
		ask(final) // an invalid value, or one for another process
		require.Empty(t, synced(t, p).Final, final)
	}
	require.Zero(t, looked.Load(), "it is known")

	last := int64(0)
	for _, final := range []string{run + "/7", run + "/8", run + "/8"} {
		ask(final)
		require.Eventually(t, func() bool { return looked.Load() > last && p.Status(time.Now()).Final == final }, 10*time.Minute, 5*time.Millisecond)
		require.Equal(t, "one", b.at("p/a"))
		synced(t, p)
		last = looked.Load()
		require.Equal(t, final, synced(t, p).Final, "it stays answered")
		require.Equal(t, last, looked.Load(), "a request is for one pass")
	}
}

// A request for the final upload stays until a pass succeeds, however many fail before.
func TestMirrorComparesAllAfterFailures(t *testing.T) {
	b := newBed(t)
	denied := true
	b.fake.hook = func(w http.ResponseWriter, r *http.Request, key string) bool {
		if denied {
			w.WriteHeader(http.StatusForbidden)
			return true
		}
		return b.takesAnything(w, r, key)
	}
	target, err := ParseSource("s3://bucket/p/")
	require.NoError(t, err)
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	config := PutConfig{Dir: t.TempDir(), Target: target, Back: true, S3: s3store.Config{Endpoint: b.fake.URL, Attempts: 1, Stall: patient}, Memory: 64 * store.MiB, Log: quiet}
	require.NoError(t, os.WriteFile(filepath.Join(config.Dir, "a"), []byte("one"), 0o600))
	m := &mirror{upload: &upload{PutConfig: config, progress: NewProgress(ReadyAfter{})}, known: map[string]string{}}
	m.onVerified = m.recordUploaded
	require.NoError(t, m.connect(t.Context()))
	m.progress.Identify("claim", "r1")
	m.progress.AskFinal("r1/0")
	for range 2 {
		m.pass(t.Context())
		require.Empty(t, m.progress.Status(time.Now()).Final)
		require.Equal(t, "r1/0", m.final)
	}
	denied = false
	m.pass(t.Context())
	require.Equal(t, "r1/0", m.progress.Status(time.Now()).Final)
	require.Equal(t, "one", b.at("p/a"))
	require.Empty(t, m.final)
}
