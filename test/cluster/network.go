package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// Command returns a program of this machine, to run in the cluster's network.
func (c *Cluster) Command(ctx context.Context, argv ...string) *exec.Cmd {
	return c.inside(ctx, argv...)
}

// Dial connects this process to an address in the cluster's network.
func (c *Cluster) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	entered := c.within(func() { conn, err = new(net.Dialer).DialContext(ctx, network, address) })
	if entered != nil {
		return nil, entered
	}
	return conn, err
}

// Listen lets this process listen at an address in the cluster's network.
func (c *Cluster) Listen(ctx context.Context, network, address string) (at net.Listener, err error) {
	entered := c.within(func() { at, err = new(net.ListenConfig).Listen(ctx, network, address) })
	if entered != nil {
		return nil, entered
	}
	return at, err
}

// within calls do in the cluster's network.
func (c *Cluster) within(do func()) error {
	done := make(chan error)
	go func() {
		// A socket belongs to the namespace of the thread that creates it.
		runtime.LockOSThread()
		back, err := c.enter()
		if err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("enter the cluster's network: %w", err)
			return
		}
		do()
		if back() == nil {
			runtime.UnlockOSThread()
		} // else the thread ends with this goroutine, so that no other goroutine runs in the wrong namespace
		done <- nil
	}()
	return <-done
}

// enter moves the calling thread into the cluster's network. back moves it out again.
func (c *Cluster) enter() (back func() error, err error) {
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	there, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", c.pid))
	if err != nil {
		return nil, errors.Join(err, home.Close())
	}
	defer there.Close()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, errors.Join(err, home.Close())
	}
	return func() error {
		defer home.Close()
		return unix.Setns(int(home.Fd()), unix.CLONE_NEWNET)
	}, nil
}

// AdminKubeconfig returns the path of the cluster administrator's kubeconfig. Its address is valid only in the
// cluster's network; see Dial.
func (c *Cluster) AdminKubeconfig() string { return c.dir + "/" + adminKubeconfig }
