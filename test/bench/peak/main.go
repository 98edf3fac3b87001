// Peak runs a command and prints its peak resident memory, in KiB.
//
// It is a separate program because Linux includes the memory that a process had before it executed another program:
// the child of a large process would seem large.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

func main() {
	cmd := exec.Command(os.Args[1], os.Args[2:]...)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "peak:", err)
		os.Exit(1)
	}
	usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		fmt.Fprintln(os.Stderr, "peak: this system does not tell how much memory a process had")
		os.Exit(1)
	}
	fmt.Println(usage.Maxrss)
}
