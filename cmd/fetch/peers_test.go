package main

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
)

// A process copies a directory from a peer although the source is gone, and the token appears in
// no output, log or status.
func TestCopyFromAPeer(t *testing.T) {
	token, secrets := strings.Repeat("0123456789abcdef", 4), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(secrets, "token"), []byte(token), 0o600))
	from, first, second := t.TempDir(), filepath.Join(t.TempDir(), "first"), filepath.Join(t.TempDir(), "second")
	require.NoError(t, os.WriteFile(filepath.Join(from, "a"), []byte("content"), 0o600))
	source, result := "file://"+from+"/", filepath.Join(t.TempDir(), "result")
	said := ""
	run := func(args ...string) protocol.Status {
		out, err := program(t, append([]string{"--progress=json", "--result=" + result}, args...)...).CombinedOutput()
		require.NoError(t, err, string(out))
		data, err := os.ReadFile(result)
		require.NoError(t, err)
		said += string(out) + string(data)
		var status protocol.Status
		require.NoError(t, json.Unmarshal(data, &status))
		return status
	}
	index := run("--index", source, first).Index
	require.NotEmpty(t, index)

	server := program(t, "serve", "--progress=none", "--address=127.0.0.1:0", "--peers-dir="+secrets, "--peers-dataset=set", first)
	log, err := server.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, server.Start())
	line, err := bufio.NewReader(log).ReadString('\n')
	require.NoError(t, err)
	address := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(line)
	require.NotEmpty(t, address, line)

	require.NoError(t, os.RemoveAll(from))
	status := run("--peer="+address, "--peer-index="+index, "--peers-dir="+secrets, "--peers-dataset=set", source, second)
	require.Equal(t, index, status.Index)
	data, err := os.ReadFile(filepath.Join(second, "a"))
	require.NoError(t, err)
	require.Equal(t, "content", string(data))
	require.NotContains(t, said+line, token)

	require.NoError(t, server.Process.Signal(os.Interrupt))
	require.NoError(t, server.Wait())
	out, err := program(t, "serve", "--progress=none", "--address=127.0.0.1:0", first).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "--peers-dir")
}
