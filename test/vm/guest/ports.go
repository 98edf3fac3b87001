//go:build linux

package main

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// linkPorts creates links to serial lines under the names of virtio ports, which User-Mode Linux does not have. The
// format is NAME:TTY,….
func linkPorts(ports string) error {
	for port := range strings.SplitSeq(ports, ",") {
		name, tty, ok := strings.Cut(port, ":")
		if !ok {
			continue
		}
		if err := linkPort(name, tty); err != nil {
			return fmt.Errorf("set up port %s: %w", name, err)
		}
	}
	return nil
}

func linkPort(name, tty string) error {
	if err := os.MkdirAll("/dev/virtio-ports", 0o755); err != nil {
		return err
	}
	line, err := os.OpenFile("/dev/"+tty, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer line.Close()
	mode, err := unix.IoctlGetTermios(int(line.Fd()), unix.TCGETS)
	if err != nil {
		return err
	}
	mode.Oflag &^= unix.OPOST // no translation of bytes
	mode.Lflag &^= unix.ECHO | unix.ICANON | unix.ISIG
	if err := unix.IoctlSetTermios(int(line.Fd()), unix.TCSETS, mode); err != nil {
		return err
	}
	return os.Symlink("../"+tty, "/dev/virtio-ports/"+name)
}
