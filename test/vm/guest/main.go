//go:build linux

// Command guest is process 1 of the test bed's virtual machines. It finds the root disk, sets up the system, and
// runs the commands that the host sends over the network link between them.
//
// Process 1 stays in a loop that reaps orphans. A copy of itself, the server, communicates with the host, so that
// only the server waits for the commands that it started.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/test/vm/wire"
)

const serverArg = "serve"

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "guest: ", serve()) // it returns only when it fails
		os.Exit(1)
	}
	// The environment came from the kernel. From here on, every command inherits it.
	os.Clearenv()
	for name, value := range map[string]string{
		"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME": "/root",
		"TERM": "linux",
	} {
		if err := os.Setenv(name, value); err != nil {
			fail(err)
		}
	}
	if err := boot(); err != nil {
		fail(err)
	}
	server := exec.Command("/proc/self/exe", serverArg)
	server.Stdout, server.Stderr = os.Stdout, os.Stderr
	if err := server.Start(); err != nil {
		fail(err)
	}
	reapUntil(server.Process.Pid)
	fail(errors.New("the guest's server has ended"))
}

// reapUntil waits for children, including adopted ones, until pid has ended.
func reapUntil(pid int) {
	for {
		got, err := unix.Wait4(-1, nil, 0, nil)
		if got == pid || (err != nil && !errors.Is(err, unix.EINTR)) {
			return
		}
	}
}

// fail reports to the host and the console why the guest cannot go on, and powers it off.
func fail(err error) {
	fmt.Fprintln(os.Stderr, "guest:", err)
	if host, dialErr := dialHost(); dialErr == nil {
		_ = wire.Write(host, wire.Frame{Kind: wire.Failed, Payload: []byte(err.Error())})
		time.Sleep(time.Second) // until it is sent
	}
	powerOff()
}

// powerOff syncs all file systems and powers the machine off.
func powerOff() {
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {}
}
