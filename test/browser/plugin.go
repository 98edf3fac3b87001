package browser

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Serve runs the plugin's command ui as a user does, until the test ends, and returns the URL of its page.
func Serve(t *testing.T, plugin, kubeconfig string) string {
	t.Helper()
	cmd := exec.Command(plugin, "--kubeconfig="+kubeconfig, "ui", "--no-browser")
	cmd.Stderr = os.Stderr
	said, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
		require.NoError(t, cmd.Wait(), "ctrl-C ends it, and is no failure")
	})
	url, err := bufio.NewReader(said).ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSpace(url)
}
