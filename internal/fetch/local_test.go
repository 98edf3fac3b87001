package fetch

import (
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/fetch/dirstore"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
	"github.com/flexlvm/flexlvm/internal/fetch/store/storetest"
)

func TestDirectorySource(t *testing.T) {
	b := newBed(t)
	from := t.TempDir()
	want := map[string][]byte{"a": []byte("a"), "d/large": storetest.RandomBytes(3, wholeLimit+store.MiB)}
	for path, data := range want {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(from, path)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(from, path), data, 0o600))
	}
	require.NoError(t, os.Symlink("a", filepath.Join(from, "link")))
	for _, own := range []string{"lost+found", ".flexlvm"} { // only root may read lost+found
		require.NoError(t, os.MkdirAll(filepath.Join(from, own, "x"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(from, own, "x", "y"), nil, 0o600))
	}
	b.change = func(c *Config) {
		from, err := dirstore.New(c.Source)
		require.NoError(t, err)
		c.Store = from
	}
	refused, _, err := b.run("file://" + from + "/")
	require.NoError(t, err)
	require.Len(t, refused, 1)
	require.Equal(t, "it is a symbolic link", refused[0].Reason)
	for _, e := range b.mustHave(want) {
		require.Equal(t, store.CheckSize, e.Check)
	}
}

// badSector is a directory one of whose files cannot be read.
type badSector struct {
	*dirstore.Directory
	key string
}

func (b badSector) Open(ctx context.Context, o store.Object, part store.Span) (store.Stream, error) {
	stream, err := b.Directory.Open(ctx, o, part)
	if o.Key == b.key && err == nil {
		stream.Body = io.NopCloser(iotest.ErrReader(store.FromSource(&fs.PathError{Op: "read", Path: o.Key, Err: unix.EIO})))
	}
	return stream, err
}

func TestFileThatTheSourceCannotRead(t *testing.T) {
	b := newBed(t)
	from := t.TempDir()
	want := map[string][]byte{}
	for i := range 2 * maxFailures {
		want[strconv.Itoa(i)] = []byte("x")
		require.NoError(t, os.WriteFile(filepath.Join(from, strconv.Itoa(i)), []byte("x"), 0o600))
	}
	b.change = func(c *Config) {
		dir, err := dirstore.New(c.Source)
		require.NoError(t, err)
		c.Store, c.Attempts = badSector{dir.(*dirstore.Directory), from + "/0"}, 1
	}
	_, _, err := b.run("file://" + from + "/")
	require.ErrorContains(t, err, "1 of 40 files could not be fetched")
	require.ErrorIs(t, err, unix.EIO)
	var e *store.Error
	require.ErrorAs(t, err, &e)
	require.True(t, e.Retryable)
	delete(want, "0")
	b.mustHave(want)
}

// Two directories may have files with equal names, sizes and times but different content: the second
// fetch replaces the files.
func TestAnotherDirectoryOfTheSameLook(t *testing.T) {
	b := newBed(t)
	b.change = func(c *Config) {
		from, err := dirstore.New(c.Source)
		require.NoError(t, err)
		c.Store = from
	}
	then := time.Now().Add(-time.Hour)
	for _, content := range []string{"first", "other"} {
		from := t.TempDir()
		for _, path := range []string{"a", "b"} {
			require.NoError(t, os.WriteFile(filepath.Join(from, path), []byte(content), 0o600))
			require.NoError(t, os.Chtimes(filepath.Join(from, path), then, then))
		}
		_, _, err := b.run("file://" + from + "/")
		require.NoError(t, err)
		for _, e := range b.mustHave(map[string][]byte{"a": []byte(content), "b": []byte(content)}) {
			require.Equal(t, store.CheckSize, store.ChooseCheck(store.Sums{}, e.ETag).Kind, "it is no hash")
		}
	}
}

// A write to a file while it is read is noticed at the file's end.
func TestFileChangesWhileItIsRead(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "a")
	require.NoError(t, os.WriteFile(name, []byte("first"), 0o600))
	source, err := ParseSource("file://" + dir + "/")
	require.NoError(t, err)
	from, err := dirstore.New(source)
	require.NoError(t, err)
	o, _, err := from.Stat(t.Context(), dir+"/a", "")
	require.NoError(t, err)
	read := func(meanwhile func()) error {
		stream, err := from.Open(t.Context(), o, store.Span{Offset: 0, Length: o.Size})
		require.NoError(t, err)
		defer stream.Body.Close()
		_, err = io.CopyN(io.Discard, stream.Body, o.Size)
		require.NoError(t, err)
		meanwhile()
		_, err = stream.Body.Read(make([]byte, 1))
		return err
	}
	require.ErrorIs(t, read(func() {}), io.EOF)
	require.ErrorIs(t, read(func() {}), io.EOF, "to read it is no change")
	require.ErrorIs(t, read(func() {
		time.Sleep(20 * time.Millisecond) // the clock of change times is coarse
		require.NoError(t, os.WriteFile(name, []byte("other"), 0o600))
		require.NoError(t, os.Chtimes(name, o.Modified, o.Modified))
	}), store.ErrChanged, "though its size and its time are the same")
}

// flakyEnd is a directory in which the end of a large file's last range cannot be read the first time.
type flakyEnd struct {
	*dirstore.Directory
	// lastRange is called before the last range is read, and lastByte before the byte before its end is read again.
	lastRange, lastByte func()

	failed bool
	opened int
}

func (f *flakyEnd) Open(ctx context.Context, o store.Object, part store.Span) (store.Stream, error) {
	f.opened++
	last := part.End() == o.Size && !f.failed
	if f.failed && part.Length == 1 {
		f.lastByte()
	}
	stream, err := f.Directory.Open(ctx, o, part)
	if err == nil && last {
		f.failed = true
		f.lastRange()
		failure := store.FromSource(&fs.PathError{Op: "statx", Path: o.Key, Err: unix.ETIMEDOUT})
		stream.Body = io.NopCloser(io.MultiReader(io.LimitReader(stream.Body, part.Length), iotest.ErrReader(failure)))
	}
	return stream, err
}

// If the end of a large file's range cannot be read, that the file did not change is checked again, and the range is not
// read again.
func TestEndOfARangeIsReadAgain(t *testing.T) {
	first, other := storetest.RandomBytes(3, wholeLimit+store.MiB), storetest.RandomBytes(4, wholeLimit+store.MiB)
	for name, c := range map[string]struct {
		changedBeforeEnd, changedAfterEnd bool
		want                              []byte
	}{
		"unchanged":                       {false, false, first},
		"changed while the range is read": {true, false, other},
		"changed before it is read again": {false, true, other},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			from := t.TempDir()
			file := filepath.Join(from, "a")
			require.NoError(t, os.WriteFile(file, first, 0o600))
			change := func(is bool) func() {
				return func() {
					if is {
						time.Sleep(20 * time.Millisecond) // the clock of change times is coarse
						require.NoError(t, os.WriteFile(file, other, 0o600))
					}
				}
			}
			var flaky *flakyEnd
			b.change = func(config *Config) {
				dir, err := dirstore.New(config.Source)
				require.NoError(t, err)
				flaky = &flakyEnd{Directory: dir.(*dirstore.Directory), lastRange: change(c.changedBeforeEnd), lastByte: change(c.changedAfterEnd)}
				config.Store, config.Parallel = flaky, 1
			}
			_, _, err := b.run("file://" + from + "/")
			require.NoError(t, err)
			b.mustHave(map[string][]byte{"a": c.want})
			if ranges := len(spans(int64(len(first)), spanSize(int64(len(first))), nil)); string(c.want) == string(first) {
				require.Equal(t, ranges+1, flaky.opened)
			}
		})
	}
}
