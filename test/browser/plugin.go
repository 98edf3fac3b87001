package browser

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/vm"
)

// Serve runs kubectl flexlvm ui as a user does, until the test ends, and returns the address
// of its page.
func Serve(t *testing.T, kubeconfig string) string {
	t.Helper()
	root, err := vm.SourceDir()
	require.NoError(t, err)
	binary := filepath.Join(t.TempDir(), "kubectl-flexlvm")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "./cmd/kubectl-flexlvm")
	build.Dir = root
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))

	cmd := exec.Command(binary, "--kubeconfig="+kubeconfig, "ui", "--no-browser")
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
