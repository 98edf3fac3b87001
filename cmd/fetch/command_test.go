package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
)

// asFetch is the environment variable that makes the test binary run as fetch.
const asFetch = "FETCH_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asFetch) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// program returns a command that runs fetch as a process.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), asFetch+"=1")
	return cmd
}

func TestExitCodes(t *testing.T) {
	from, dest := t.TempDir(), filepath.Join(t.TempDir(), "dest")
	require.NoError(t, os.WriteFile(filepath.Join(from, "a"), []byte("a"), 0o600))
	tests := []struct {
		name string
		args []string
		code int
	}{
		{"complete", []string{"file://" + from + "/", dest}, 0},
		{"no argument", nil, 2},
		{"unknown flag", []string{"--fast", "file:///x", dest}, 2},
		{"bandwidth", []string{"--bandwidth=fast", "file:///x", dest}, 2},
		{"address of progress", []string{"--listen=nowhere:x", "file:///x", dest}, 1},
		{"scheme", []string{"ftp://x", dest}, 2},
		{"memory", []string{"--memory=much", "file:///x", dest}, 2},
		{"order", []string{"--order=list", "file:///x", dest}, 2},
		{"no source", []string{"file://" + from + "/none/", dest}, 1},
		{"away", []string{"--endpoint=http://127.0.0.1:1", "--anonymous", "--attempts=1", "s3://bucket/x/", dest}, 75},
		{"time is over", []string{"--endpoint=http://127.0.0.1:1", "--anonymous", "--timeout=100ms", "s3://bucket/x/", dest}, 124},
		{"prepare", []string{"prepare", dest + "2"}, 0},
		{"prepare a file", []string{"prepare", filepath.Join(from, "a")}, 1},
		{"put no version", []string{"put", "--versions=" + dest + "4", "--endpoint=http://127.0.0.1:1", "--anonymous", dest + "4", "s3://bucket/x/"}, 1},
		{"mirror no version", []string{"mirror", "--versions=" + dest + "4", "--endpoint=http://127.0.0.1:1", "--anonymous", dest + "4", "s3://bucket/x/"}, 1},
		{"put above the versions", []string{"put", "--versions=" + from, "--endpoint=http://127.0.0.1:1", "--anonymous", filepath.Dir(from), "s3://bucket/x/"}, 2},
		{"put to a file", []string{"put", from, "file:///x"}, 2},
		{"address style", []string{"--address-style=x", "s3://bucket/x/", dest}, 2},
		{"name", []string{"--name=x", "file://" + from + "/", dest}, 2},
		{"checksum", []string{"--checksum=some", "file://" + from + "/", dest}, 2},
		{"keep changed with sync", []string{"--keep-changed", "--sync", "file://" + from + "/", dest}, 2},
		{"keep changed with versions", []string{"--keep-changed", "--versions=" + dest, "file://" + from + "/", dest}, 2},
		{"keep changed", []string{"--keep-changed", "file://" + from + "/", dest}, 0},
		{"pattern", []string{"--include=[", "file://" + from + "/", dest}, 2},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			result := filepath.Join(t.TempDir(), "result")
			out, err := program(t, append([]string{"--result=" + result, "--progress=none"}, test.args...)...).CombinedOutput()
			if test.code == 0 {
				require.NoError(t, err, string(out))
			} else {
				var exit *exec.ExitError
				require.ErrorAs(t, err, &exit, string(out))
				require.Equal(t, test.code, exit.ExitCode(), string(out))
			}
			data, err := os.ReadFile(result)
			if cobras := test.name == "no argument" || test.name == "unknown flag"; cobras { // cobra reports these before anything runs
				require.ErrorIs(t, err, os.ErrNotExist)
				return
			}
			require.NoError(t, err)
			var status protocol.Status
			require.NoError(t, json.Unmarshal(data, &status))
			require.Equal(t, test.code == 0, status.State == protocol.StateComplete)
			require.Equal(t, test.code == 75, status.Retryable)
			require.NotEmpty(t, status.Message)
		})
	}
	require.NoError(t, os.Symlink("a", filepath.Join(from, "link")))
	out, err := program(t, "--sync", "file://"+from+"/", dest).CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, string(out))
	require.Equal(t, 3, exit.ExitCode(), string(out))
}

// asNobody makes a command run as a user who cannot read root's files. The program is started from
// /proc/self/exe, because that user may not have access to its path.
func asNobody(t *testing.T, cmd *exec.Cmd, dirs ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	const nobody = 65534
	cmd.Path = "/proc/self/exe"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	for _, dir := range dirs {
		require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
		require.NoError(t, os.Chown(dir, nobody, nobody))
	}
}

// objectStore starts an S3 server that accepts objects, and returns the checksums sent with them.
func objectStore(t *testing.T) *httptest.Server {
	t.Helper()
	var mu sync.Mutex
	sums, sizes := map[string]string{}, map[string]string{}
	const sum = "X-Amz-Checksum-Crc64nvme"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		mu.Lock()
		defer mu.Unlock()
		w.Header().Set("ETag", `"e"`)
		if r.Method == http.MethodPut {
			sums[r.URL.Path], sizes[r.URL.Path] = r.Header.Get(sum), r.Header.Get("X-Amz-Decoded-Content-Length")
			return
		}
		if sizes[r.URL.Path] == "" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set(sum, sums[r.URL.Path])
		w.Header().Set("Content-Length", sizes[r.URL.Path])
		w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
	}))
	t.Cleanup(server.Close)
	return server
}

// An unreadable file does not block the others, and the message names the user who needs access.
func TestUnreadableFile(t *testing.T) {
	from, dest := t.TempDir(), t.TempDir()
	for i, name := range []string{"a", "b", "c"} {
		require.NoError(t, os.WriteFile(filepath.Join(from, name), []byte(name), 0o644-os.FileMode(i%2)*0o644))
	}
	for name, args := range map[string][]string{
		"put":   {"put", "--endpoint=" + objectStore(t).URL, from, "s3://bucket/out/"},
		"fetch": {"file://" + from + "/", dest},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := program(t, append(args, "--progress=json")...)
			cmd.Env = append(cmd.Env, "AWS_ACCESS_KEY_ID=key", "AWS_SECRET_ACCESS_KEY=secret")
			asNobody(t, cmd, from, dest)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit, string(out))
			require.Equal(t, 1, exit.ExitCode(), string(out))
			require.Contains(t, string(out), "1 of 3 files could not be")
			require.Contains(t, string(out), "make it readable for user")
			require.Contains(t, string(out), `"filesDone":2`)
		})
	}
}

func TestNoSecretInArguments(t *testing.T) {
	for _, cmd := range append(command().Commands(), command()) {
		for _, flag := range []string{"access-key", "secret-key", "secret", "token"} {
			require.Nil(t, cmd.Flags().Lookup(flag))
		}
	}
}

func TestProgressIsServed(t *testing.T) {
	from, dest := t.TempDir(), filepath.Join(t.TempDir(), "dest")
	require.NoError(t, os.WriteFile(filepath.Join(from, "a"), make([]byte, 4<<20), 0o600))
	cmd := program(t, "--listen=127.0.0.1:0", "--bandwidth=64Ki", "--memory=64Ki", "file://"+from+"/", dest)
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	head := make([]byte, 4096)
	n, err := stderr.Read(head)
	require.NoError(t, err)
	_, address, found := strings.Cut(string(head[:n]), `address="`)
	require.True(t, found, string(head[:n]))
	address, _, _ = strings.Cut(address, `"`)

	response, err := http.Get("http://" + address + "/ready")
	require.NoError(t, err)
	require.Equal(t, http.StatusServiceUnavailable, response.StatusCode)
	require.NoError(t, response.Body.Close())
	response, err = http.Get("http://" + address + "/progress")
	require.NoError(t, err)
	var status protocol.Status
	require.NoError(t, json.NewDecoder(response.Body).Decode(&status))
	require.NoError(t, response.Body.Close())
	require.Contains(t, []string{protocol.StateListing, protocol.StateFetching}, status.State)

	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	_, _ = io.Copy(io.Discard, stderr)
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Equal(t, 75, exit.ExitCode())
}

// TestKilledAtAnyMoment kills the program repeatedly. In the end all files are right, and no file that
// was in the manifest at a kill was fetched again.
func TestKilledAtAnyMoment(t *testing.T) {
	from, dest := t.TempDir(), filepath.Join(t.TempDir(), "dest")
	data := make([]byte, 40<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	want := map[string][]byte{"large": data}
	for i := range 300 {
		want[fmt.Sprintf("d%d/%d", i%7, i)] = data[i*100 : i*100+i*37]
	}
	for path, content := range want {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(from, path)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(from, path), content, 0o600))
	}
	args := []string{"--progress=none", "--log-level=error", "--memory=256Ki", "file://" + from + "/", dest}
	entered := map[string]time.Time{}
	kills := 0
	began := time.Now()
	require.NoError(t, program(t, "--help").Run())
	moments := 700*time.Millisecond + time.Since(began) // on a busy machine it starts slowly
	for range 60 {
		cmd := program(t, append([]string{"--bandwidth=30Mi"}, args...)...)
		require.NoError(t, cmd.Start())
		timer := time.AfterFunc(rand.N(moments), func() { _ = cmd.Process.Kill() })
		err := cmd.Wait()
		timer.Stop()
		for path, at := range manifest(t, dest) {
			if before, known := entered[path]; known {
				require.Equal(t, before, at, "%s was there and was fetched again", path)
			}
			entered[path] = at
			got, err := os.ReadFile(filepath.Join(dest, path))
			require.NoError(t, err)
			require.True(t, bytes.Equal(want[path], got), "%s is in the manifest and is not right", path)
		}
		if err == nil && kills > 0 {
			break
		}
		if err == nil { // it completed before it could be killed: repeat from the beginning
			require.NoError(t, os.RemoveAll(dest))
			clear(entered)
			continue
		}
		var exit *exec.ExitError
		require.True(t, errors.As(err, &exit) && exit.ExitCode() == -1, "%v", err)
		kills++
	}
	out, err := program(t, args...).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Positive(t, kills)
	require.Len(t, manifest(t, dest), len(want))
	for path, content := range want {
		got, err := os.ReadFile(filepath.Join(dest, path))
		require.NoError(t, err)
		require.True(t, bytes.Equal(content, got), path)
	}
	require.FileExists(t, filepath.Join(dest, ".flexlvm/complete"))
	left, err := os.ReadDir(filepath.Join(dest, ".flexlvm/tmp"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// manifest returns when each file was fetched, by path.
func manifest(t *testing.T, dest string) map[string]time.Time {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dest, ".flexlvm/manifest.jsonl"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	require.NoError(t, err)
	entries := map[string]time.Time{}
	for line := range strings.Lines(string(data)) {
		var e fetch.Entry
		if json.Unmarshal([]byte(line), &e) == nil {
			entries[e.Path] = e.FetchedAt
		}
	}
	return entries
}
