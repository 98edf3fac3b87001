package fetch

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
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

// back returns the configuration for uploading a directory back to s3://bucket/p/, one file at a time.
func (b *bed) back(dir string) PutConfig {
	b.t.Helper()
	target, err := ParseSource("s3://bucket/p/")
	require.NoError(b.t, err)
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	return PutConfig{Dir: dir, Target: target, Back: true, S3: s3store.Config{Endpoint: b.fake.URL, Attempts: 1, Stall: patient}, Parallel: 1, Memory: 64 * store.MiB, Log: quiet}
}

// pass runs one pass of a new mirror over a directory.
func (b *bed) pass(dir string) *Progress {
	b.t.Helper()
	m := b.mirror(dir)
	m.pass(b.t.Context())
	return m.progress
}

func (b *bed) mirror(dir string) *mirror {
	b.t.Helper()
	m := &mirror{upload: &upload{PutConfig: b.back(dir), progress: NewProgress(ReadyAfter{})}, known: map[string]string{}}
	m.onVerified = m.recordUploaded
	require.NoError(b.t, m.connect(b.t.Context()))
	return m
}

// A full volume has no room for the note that a fetched file is sent, so that file is not uploaded.
// Files that need no note are.
func TestFullVolumeIsUploadedAsFarAsItCan(t *testing.T) {
	b := newBed(t)
	b.fake.put("p/a", []byte("one"))
	_, _, err := b.run("s3://bucket/p/")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(b.dest, "a"), []byte("two"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(b.dest, "b"), []byte("new"), 0o600))
	b.fake.hook = func(w http.ResponseWriter, r *http.Request, key string) bool {
		if r.Method == http.MethodHead && key == "p/a" { // a symlink loop: the file can no longer be opened
			if err := os.Symlink("sent.jsonl", filepath.Join(b.dest, sentFile)); err != nil {
				t.Error(err)
			}
		}
		return b.takesAnything(w, r, key)
	}
	status := b.pass(b.dest).Status(time.Now())
	require.Zero(t, status.Passes)
	require.Contains(t, status.Message, `1 of 2 changed files could not be uploaded and are retried; the first: upload "a": record in .flexlvm/sent.jsonl that it is sent`)
	require.Equal(t, "one", b.at("p/a"))
	require.Equal(t, "new", b.at("p/b"))
}

// On a full volume, a file that was not fetched is uploaded again although its note cannot be withdrawn.
func TestFullVolumeIsUploadedAgain(t *testing.T) {
	b := newBed(t)
	b.fake.put("p/a", []byte("one"))
	_, _, err := b.run("s3://bucket/p/")
	require.NoError(t, err)
	b.fake.hook = b.takesAnything
	write := func(text string) {
		require.NoError(t, os.WriteFile(filepath.Join(b.dest, "b"), []byte(text), 0o600))
	}
	write("new")
	m := b.mirror(b.dest)
	m.pass(t.Context())
	require.Equal(t, "new", b.at("p/b"))
	require.NoError(t, os.Remove(filepath.Join(b.dest, sentFile)))
	require.NoError(t, os.Symlink("sent.jsonl", filepath.Join(b.dest, sentFile))) // a symlink loop: the file can no longer be opened
	write("newer")
	m.pass(t.Context())
	require.Equal(t, "newer", b.at("p/b"))
}

// A file that can no longer be opened does not block the upload of the others.
func TestFileInTheWayOfADirectory(t *testing.T) {
	b := newBed(t)
	dir := t.TempDir()
	for _, name := range []string{"a", "d/x", "z"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600))
	}
	b.fake.hook = func(w http.ResponseWriter, r *http.Request, key string) bool {
		if r.Method == http.MethodPut && key == "p/a" {
			if err := os.RemoveAll(filepath.Join(dir, "d")); err != nil {
				t.Error(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "d"), nil, 0o600); err != nil {
				t.Error(err)
			}
		}
		return b.takesAnything(w, r, key)
	}
	_, err := Put(t.Context(), b.back(dir), NewProgress(ReadyAfter{}))
	require.ErrorIs(t, err, unix.ENOTDIR)
	require.ErrorContains(t, err, `1 of 3 files could not be uploaded, the first: upload "d/x"`)
	require.Equal(t, "z", b.at("p/z"))
}

// A read error of the local disk is reported as local, whether hashing or the upload notices it. An
// error of the target is not.
func TestFileThatTheDiskDoesNotGive(t *testing.T) {
	b := newBed(t)
	u := &upload{PutConfig: b.back("/proc/self"), progress: NewProgress(ReadyAfter{})}
	require.NoError(t, u.connect(t.Context()))
	o, _, err := u.local.Stat(t.Context(), "/proc/self/mem", "")
	require.NoError(t, err)
	o.Path, o.Size = "mem", 5 // reading fails, because nothing is mapped at 0
	err = u.uploadOnce(t.Context(), o, make([]byte, maxBuffer))
	require.ErrorIs(t, err, unix.EIO)
	require.True(t, isLocal(err))

	b.fake.hook = func(_ http.ResponseWriter, r *http.Request, _ string) bool {
		_, err := io.Copy(io.Discard, r.Body)
		return err == nil
	}
	stream, err := u.local.Open(t.Context(), o, store.Span{})
	require.NoError(t, err)
	defer func() { _ = stream.Body.Close() }()
	err = u.remote.Upload(t.Context(), "p/a", pinned{stream.Body.(*dirstore.Pinned)}, o.Size, nil)
	require.ErrorIs(t, err, unix.EIO)
	require.True(t, isLocal(err))

	b = newBed(t)
	b.fake.hook = func(w http.ResponseWriter, _ *http.Request, _ string) bool {
		fail(w, http.StatusForbidden, "InvalidAccessKeyId")
		return true
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a"), nil, 0o600))
	_, err = Put(t.Context(), b.back(dir), NewProgress(ReadyAfter{}))
	require.Equal(t, store.Fatal, store.Classify(err))
	require.False(t, isLocal(err))
}

// A directory without read permission is reported as refused, and does not block the upload of the
// others. The mirror's pass then does not count as complete.
func TestDirectoryThatCannotBeListed(t *testing.T) {
	b := newBed(t)
	b.fake.hook = b.takesAnything
	dir := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
	for _, name := range []string{"a", "d/x", "z"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600))
	}
	require.NoError(t, os.Chmod(filepath.Join(dir, "d"), 0))
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(dir, "d"), 0o755) })
	defer asNobody()()

	refused, err := Put(t.Context(), b.back(dir), NewProgress(ReadyAfter{}))
	require.NoError(t, err)
	require.Len(t, refused, 1)
	require.Equal(t, "d", refused[0].Key)
	require.True(t, strings.HasPrefix(refused[0].Reason, "it cannot be listed: it cannot be read: make it readable for user "), refused[0].Reason)
	require.Equal(t, "a", b.at("p/a"))
	require.Equal(t, "z", b.at("p/z"))

	b.fake.delete("p/z")
	p := b.pass(dir)
	require.Equal(t, "z", b.at("p/z"))
	require.Zero(t, p.Status(time.Now()).Passes, "not all there is was uploaded")
	require.EqualValues(t, 1, p.Refused())
}

// An upload is complete only if every file that exists at its end was uploaded in its present state.
func TestPutOfWhatChangesMeanwhile(t *testing.T) {
	for name, c := range map[string]struct {
		change func(dir string) error
		says   string
		want   map[string]string
	}{
		"comes":       {func(dir string) error { return os.WriteFile(filepath.Join(dir, "c"), []byte("new"), 0o600) }, "1 file changed while", map[string]string{"p/c": "new"}},
		"is replaced": {func(dir string) error { return os.Rename(filepath.Join(dir, "b"), filepath.Join(dir, "a")) }, `such as "a"`, map[string]string{"p/a": "of b"}},
		"goes":        {func(dir string) error { return os.Remove(filepath.Join(dir, "a")) }, "", nil},
		"goes before": {func(dir string) error { return os.Remove(filepath.Join(dir, "z")) }, `upload "z": the object does not exist`, nil},
		"a directory": {func(dir string) error { return os.MkdirAll(filepath.Join(dir, "d", "e"), 0o755) }, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			dir := t.TempDir()
			for _, name := range []string{"a", "b", "y", "z"} {
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("of "+name), 0o600))
			}
			var once sync.Once
			b.fake.hook = func(w http.ResponseWriter, r *http.Request, key string) bool {
				if r.Method == http.MethodPut && key == "p/y" {
					once.Do(func() {
						if err := c.change(dir); err != nil {
							t.Error(err)
						}
					})
				}
				return b.takesAnything(w, r, key)
			}
			progress := NewProgress(ReadyAfter{})
			config := b.back(dir)
			config.Back = false // every file may be sent
			_, err := Put(t.Context(), config, progress)
			if c.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.says)
			var e *store.Error
			require.ErrorAs(t, err, &e)
			require.True(t, e.Retryable)
			require.Equal(t, protocol.StateFailed, progress.Status(time.Now()).State)

			_, err = Put(t.Context(), config, NewProgress(ReadyAfter{}))
			require.NoError(t, err)
			for key, text := range c.want {
				require.Equal(t, text, b.at(key))
			}
		})
	}
}

// asNobody makes this thread open files as user nobody, who cannot read root's files, until the returned
// function is called. Other threads are unaffected.
func asNobody() (back func()) {
	runtime.LockOSThread()
	const nobody = 65534
	was, _ := unix.SetfsuidRetUid(nobody) // no effect, and none needed, unless the test runs as root
	return func() {
		_, _ = unix.SetfsuidRetUid(was)
		runtime.UnlockOSThread()
	}
}
