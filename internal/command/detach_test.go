package command

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestMain also acts as a program that starts itself again: "parent FILE" starts "child FILE" and ends;
// the child writes whether it leads a session, and its input and output, into FILE.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "parent" {
		if err := Detach("child", os.Args[2]); err != nil {
			panic(err)
		}
		return
	}
	if len(os.Args) == 3 && os.Args[1] == "child" {
		sid, _ := unix.Getsid(0)
		in, _ := os.Readlink("/proc/self/fd/0")
		out, _ := os.Readlink("/proc/self/fd/1")
		text := strings.Join([]string{strconv.FormatBool(sid == os.Getpid()), in, out}, " ")
		_ = os.WriteFile(os.Args[2]+".tmp", []byte(text), 0o600)
		_ = os.Rename(os.Args[2]+".tmp", os.Args[2])
		return
	}
	os.Exit(m.Run())
}

func TestDetachedGoesOnAlone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "said")
	out, err := exec.Command(os.Args[0], "parent", file).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Eventually(t, func() bool {
		said, err := os.ReadFile(file)
		return err == nil && string(said) == "true /dev/null /dev/null"
	}, time.Minute, 20*time.Millisecond)
}
