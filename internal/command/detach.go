package command

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// Detach starts this program again with other arguments and does not wait for it. The new process has
// its own session and no input or output, and outlives this one.
func Detach(args ...string) error {
	cmd := exec.Cmd{
		Path:        "/proc/self/exe", // also if the file was replaced meanwhile
		Args:        append([]string{os.Args[0]}, args...),
		Dir:         "/",
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s in the background: %w", args[0], err)
	}
	return cmd.Process.Release()
}
