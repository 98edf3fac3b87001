package command

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// Detach starts this very program once more, with other arguments, and does not
// wait for it: it has a session of its own and nobody's input and output, and goes
// on when we end.
func Detach(args ...string) error {
	cmd := exec.Cmd{
		Path:        "/proc/self/exe", // also where the file was replaced meanwhile
		Args:        append([]string{os.Args[0]}, args...),
		Dir:         "/",
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s behind the call: %w", args[0], err)
	}
	return cmd.Process.Release()
}
