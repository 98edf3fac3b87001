//go:build s3

package suite

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// freeze makes the kernel block accesses to a file by other processes, as NFS does if its server is
// down, until thaw is called, at the latest at the end of the test: the kernel asks this process for
// permission and gets no answer.
func freeze(t *testing.T, name string, events uint64) (thaw func()) {
	t.Helper()
	require.Zero(t, os.Geteuid(), "it asks the kernel for permission events: run it as root")
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC, unix.O_RDONLY)
	require.NoError(t, err)
	thaw = sync.OnceFunc(func() { require.NoError(t, unix.Close(fd)) })
	t.Cleanup(thaw)
	require.NoError(t, unix.FanotifyMark(fd, unix.FAN_MARK_ADD, events, unix.AT_FDCWD, name))
	return thaw
}

// A program whose file server hangs reports that and ends. A later run succeeds.
func TestMountedFileSystemHangs(t *testing.T) {
	const grace = 5 * time.Second // the program's
	for name, test := range map[string]struct {
		events uint64
		frozen string
		verb   string
		flags  string
		limit  time.Duration
		code   int
		says   string
	}{
		"list":    {unix.FAN_OPEN_PERM | unix.FAN_ONDIR, "d", "", "--stall=1s", time.Second, 75, "listing"},
		"open":    {unix.FAN_OPEN_PERM, "d/b", "", "--stall=1s", time.Second, 75, "opening"},
		"read":    {unix.FAN_ACCESS_PERM, "d/b", "", "--stall=1s", time.Second, 75, "reading"},
		"timeout": {unix.FAN_ACCESS_PERM, "d/b", "", "--timeout=15s", 15 * time.Second, 124, "reading"}, // long enough to reach the file on a busy machine
		"put":     {unix.FAN_ACCESS_PERM, "d/b", "put", "--stall=1s", time.Second, 75, "reading"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			from := t.TempDir()
			source := tree{"a": "one", "d/b": "two", "d/c": "three"}
			require.NoError(t, os.Mkdir(filepath.Join(from, "d"), 0o755))
			for path, content := range source {
				require.NoError(t, os.WriteFile(filepath.Join(from, path), []byte(content), 0o644))
			}
			call := []string{"--progress=json", "file://" + from + "/", b.dest}
			if test.verb != "" {
				call = []string{test.verb, "--endpoint", b.proxy.Endpoint, "--progress=json", from, b.url("p/")}
			}
			frozen := filepath.Join(from, test.frozen)
			thaw := freeze(t, frozen, test.events)
			began := time.Now()
			o := b.launch(append(call, test.flags)...).wait()
			took := time.Since(began)
			require.Equal(t, test.code, o.code, o.stderr)
			require.Equal(t, test.code == 75, o.result.Retryable)
			require.Equal(t, "failed", o.result.State)
			message := test.says + " " + frozen + ": nothing has come for "
			require.Contains(t, o.result.Message, message)
			require.Contains(t, o.result.Message, "see whether the server of the mounted file system answers")
			require.Contains(t, o.stderr, message)
			lines := strings.Split(strings.TrimSpace(o.stdout), "\n")
			require.Contains(t, lines[len(lines)-1], message, "the last line of progress says it, too")
			require.GreaterOrEqual(t, took, test.limit+grace)
			const busy = 2 * time.Minute // a hang lasts until it is thawed
			require.Less(t, took, test.limit+grace+busy)

			thaw()
			o = b.launch(call...).wait()
			require.Zero(t, o.code, o.stderr)
			if test.verb == "" {
				require.Equal(t, source, b.files())
				require.True(t, b.complete())
			}
		})
	}
}
