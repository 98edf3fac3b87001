//go:build linux

package wire

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// The two ends of the link between a guest and the host. The link is in a network namespace of its own, with
// nothing else on it.
var (
	HostAddress  = net.IPv4(169, 254, 88, 1)
	GuestAddress = net.IPv4(169, 254, 88, 2)
)

// ControlArg is the kernel argument with the port of HostAddress on which the host listens for a guest's process 1.
const ControlArg = "flexlvm.control"

// SetUp sets the address of a network interface of this namespace and brings it up. The network is that of the
// address's class.
func SetUp(name string, address net.IP) error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("set up %s: %w", name, err)
	}
	defer func() { _ = unix.Close(socket) }()
	request, err := unix.NewIfreq(name)
	if err != nil {
		return fmt.Errorf("set up %s: %w", name, err)
	}
	if err := request.SetInet4Addr(address.To4()); err != nil {
		return fmt.Errorf("set up %s: %w", name, err)
	}
	if err := unix.IoctlIfreq(socket, unix.SIOCSIFADDR, request); err != nil {
		return fmt.Errorf("set up %s: give it %s: %w", name, address, err)
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("set up %s: switch it on: %w", name, err)
	}
	return nil
}
