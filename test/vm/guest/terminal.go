//go:build linux

package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/test/vm/wire"
)

// openTerminal creates a pseudo-terminal and returns this process's side and the command's.
func openTerminal(size wire.WindowSize) (ours, theirs *os.File, err error) {
	ours, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			_ = ours.Close()
		}
	}()
	number, err := unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN)
	if err != nil {
		return nil, nil, fmt.Errorf("number terminal: %w", err)
	}
	if err := unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, fmt.Errorf("unlock terminal: %w", err)
	}
	if err := resizeTerminal(ours, size); err != nil {
		return nil, nil, err
	}
	theirs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	return ours, theirs, err
}

func resizeTerminal(tty *os.File, size wire.WindowSize) error {
	return unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
}
