//go:build linux

package wire

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// The two ends of the link between a guest and the host. Nothing else is on it: it
// lies in a network namespace of its own.
var (
	HostAddress  = net.IPv4(169, 254, 88, 1)
	GuestAddress = net.IPv4(169, 254, 88, 2)
)

// ControlArg is the kernel's argument that tells process 1 of a guest at which port
// of HostAddress the host listens.
const ControlArg = "flexlvm.control"

// SetUp gives a network interface of this namespace an address and switches it on.
// The address' own class is the network.
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
