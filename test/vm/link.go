package vm

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/test/vm/wire"
)

// linkTap is the host's end of a link, a tap device.
const linkTap = "guest"

// link is the network between a guest and this process: a tap device in a network namespace of its own. The kernel
// removes both with the last process in the namespace.
type link struct {
	namespace *os.File
}

func newLink() (*link, error) {
	l := &link{}
	return l, onOwnThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make network namespace: %w", err)
		}
		if err := makeTap(linkTap); err != nil {
			return err
		}
		if err := wire.SetUp(linkTap, wire.HostAddress); err != nil {
			return err
		}
		l.namespace, err = os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		return err
	})
}

// path returns a path of the namespace. It is valid while this process lives and the link is open.
func (l *link) path() string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), l.namespace.Fd())
}

// listen opens a port on the host's end, a different one each time, so that remains of a guest that lost its power
// cannot be mistaken for the next guest.
func (l *link) listen(ctx context.Context) (listener *net.TCPListener, err error) {
	err = onOwnThread(func() error {
		if err := enterNetNS(l.path()); err != nil {
			return err
		}
		// No keep-alive: a guest that gets little processor time answers late.
		config := net.ListenConfig{KeepAlive: -1}
		opened, err := config.Listen(ctx, "tcp4", net.JoinHostPort(wire.HostAddress.String(), "0"))
		if err != nil {
			return err
		}
		listener = opened.(*net.TCPListener)
		return nil
	})
	return listener, err
}

func (l *link) close() error { return l.namespace.Close() }

// onOwnThread runs f on a thread that ends with it, because f moves the thread to another namespace.
func onOwnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- f()
	}()
	return <-done
}

// makeTap creates a tap device that persists after its creator closes it.
func makeTap(name string) error {
	fail := func(err error) error {
		return fmt.Errorf("make tap device %s: %w; it needs root and /dev/net/tun", name, err)
	}
	tun, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	defer func() { _ = unix.Close(tun) }()
	request, err := unix.NewIfreq(name)
	if err != nil {
		return fail(err)
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(tun, unix.TUNSETIFF, request); err != nil {
		return fail(err)
	}
	if err := unix.IoctlSetInt(tun, unix.TUNSETPERSIST, 1); err != nil {
		return fail(err)
	}
	return nil
}
