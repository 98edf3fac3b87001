package fetch

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
)

// newSent returns a directory with two uploaded files: a, which was fetched and then changed, and
// new, which was not fetched.
func newSent(t *testing.T) (b *bed, write func(name, text string)) {
	b = newBed(t)
	b.fake.put("p/a", []byte("one"))
	_, _, err := b.run("s3://bucket/p/")
	require.NoError(t, err)
	b.fake.hook = b.takesAnything
	write = func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(b.dest, name), []byte(text), 0o600))
	}
	write("a", "mine")
	write("new", "mine")
	p, end := b.mirroring(b.dest)
	synced(t, p)
	end()
	require.Equal(t, "mine", b.at("p/a"))
	require.Equal(t, "mine", b.at("p/new"))
	return b, write
}

// looksAgain lists the events after which all files are compared again.
var looksAgain = map[string]func(*bed){
	"the node was restarted": func(b *bed) {
		name := filepath.Join(b.dest, mirroredFile)
		text, err := os.ReadFile(name)
		require.NoError(b.t, err)
		require.NoError(b.t, os.WriteFile(name, []byte(strings.Replace(string(text), bootID(), "another", 1)), 0o600))
		p, end := b.mirroring(b.dest)
		synced(b.t, p)
		end()
	},
	"the last pass": func(b *bed) {
		p, end := b.mirroring(b.dest)
		run := synced(b.t, p).Run
		p.AskFinal(run + "/1")
		require.Eventually(b.t, func() bool { return p.Status(time.Now()).Final == run+"/1" }, 10*time.Minute, 5*time.Millisecond)
		require.Equal(b.t, protocol.StateMirroring, p.Status(time.Now()).State)
		end()
	},
	"put --back": func(b *bed) { require.NoError(b.t, b.putBack(b.t.Context())) },
}

// A file is sent once: an object that somebody else writes in its place stays until the file changes.
func TestObjectThatIsWrittenAfterTheUpload(t *testing.T) {
	for name, again := range looksAgain {
		t.Run(name, func(t *testing.T) {
			b, write := newSent(t)
			for _, key := range []string{"p/a", "p/new"} {
				b.fake.set(key, fakeObject{data: []byte("by somebody else"), etag: "of no kind"})
			}
			for range 2 {
				again(b)
				require.Equal(t, "by somebody else", b.at("p/a"))
				require.Equal(t, "by somebody else", b.at("p/new"))
			}
			write("a", "mine anew")
			write("new", "mine anew")
			again(b)
			require.Equal(t, "mine anew", b.at("p/a"))
			require.Equal(t, "mine anew", b.at("p/new"))
			b.fake.delete("p/a")
			b.fake.delete("p/new")
			again(b)
			require.Equal(t, "mine anew", b.at("p/a"), "an object that is gone is uploaded again")
			require.Equal(t, "mine anew", b.at("p/new"))
		})
	}
}

// The note about an upload is invalid once the next upload begins, even if the outcome of that is unknown.
func TestNextUploadOfUnknownEnd(t *testing.T) {
	b, write := newSent(t)
	b.fake.hook = func(w http.ResponseWriter, r *http.Request, key string) bool {
		if b.takesAnything(w, r, key) {
			panic(http.ErrAbortHandler)
		}
		return false
	}
	write("a", "other")
	write("new", "other")
	require.Error(t, b.putBack(t.Context()))
	require.Equal(t, "other", b.at("p/a"))
	require.Equal(t, "other", b.at("p/new"))
	b.fake.hook = b.takesAnything
	write("a", "mine")
	write("new", "mine")
	require.NoError(t, b.putBack(t.Context()))
	require.Equal(t, "mine", b.at("p/a"))
	require.Equal(t, "mine", b.at("p/new"))
}

// An upload of unknown outcome may still replace the next one's content, so the file then
// replaces any object that differs.
func TestUploadThatEndsAfterTheNext(t *testing.T) {
	for _, name := range []string{"a", "new"} {
		t.Run(name, func(t *testing.T) {
			b, write := newSent(t)
			lost := false
			b.fake.hook = func(w http.ResponseWriter, r *http.Request, key string) bool {
				if r.Method == http.MethodPut && !lost {
					lost = true
					panic(http.ErrAbortHandler)
				}
				return b.takesAnything(w, r, key)
			}
			write(name, "first")
			require.Error(t, b.putBack(t.Context()))
			write(name, "second")
			require.NoError(t, b.putBack(t.Context()))
			require.Equal(t, "second", b.at("p/"+name))
			b.fake.put("p/"+name, []byte("first"))
			require.NoError(t, b.putBack(t.Context()))
			require.Equal(t, "second", b.at("p/"+name))
		})
	}
}

// Lines of another target do not apply to this one: such a file is sent again, unless the object is identical.
func TestUploadsToAnotherTarget(t *testing.T) {
	b, _ := newSent(t)
	file := filepath.Join(b.dest, sentFile)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var lines strings.Builder
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" {
			lines.WriteString(strings.Replace(line, "bucket/p/", "bucket/q/", 1) + "\n")
		}
	}
	require.NoError(t, os.WriteFile(file, []byte(lines.String()), 0o600))
	b.fake.put("p/a", []byte("by somebody else"))
	require.NoError(t, b.putBack(t.Context()))
	require.Equal(t, "mine", b.at("p/a"))
	b.fake.put("p/a", []byte("by somebody else"))
	b.fake.put("p/new", []byte("by somebody else"))
	require.NoError(t, b.putBack(t.Context()))
	require.Equal(t, "by somebody else", b.at("p/a"), "it is noted now")
	require.Equal(t, "by somebody else", b.at("p/new"), "so is what was found there")
}

// The notes take space in the user's volume, so they are shortened.
func TestNotesOfUploadsStayShort(t *testing.T) {
	b, _ := newSent(t)
	u := &upload{PutConfig: b.back(b.dest), progress: NewProgress(ReadyAfter{})}
	require.NoError(t, u.connect(t.Context()))
	files, _, err := u.list(t.Context())
	require.NoError(t, err)
	require.Len(t, files, 2)
	u.sent["gone"] = sentRecord{Path: "gone"}
	before := u.sentLines
	u.shortenSent(files)
	require.Equal(t, before, u.sentLines)
	u.sentLines = 6 + minRewriteLines
	require.NoError(t, os.Remove(filepath.Join(b.dest, "a")))
	files, _, err = u.list(t.Context())
	require.NoError(t, err)
	u.shortenSent(files)
	require.Equal(t, 2, u.sentLines)
	noted, lines, err := readSent(b.dest)
	require.NoError(t, err)
	require.Equal(t, 2, lines)
	require.Equal(t, fmt.Sprint(u.sent), fmt.Sprint(noted))
	require.Contains(t, noted, "a", "it was fetched, and may come back as it was then")
	require.NotContains(t, noted, "gone")
}
