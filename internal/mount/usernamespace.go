package mount

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A userNamespaceHolder is a process that does nothing but exist, in its own user namespace: the
// kernel creates and fills a user namespace only with a process in it.
type userNamespaceHolder struct{ pid int }

// cloneArgs is the first version of struct clone_args in Linux's include/uapi/linux/sched.h.
type cloneArgs struct {
	flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize, tls uint64
}

// startHolder starts such a process. It is a bare fork that executes nothing and waits in the kernel: it
// prints nothing, needs no program, and nobody needs permission to trace it. The caller is locked
// to its thread until release, because the process ends with that thread.
func startHolder() (userNamespaceHolder, error) {
	runtime.LockOSThread()
	// The process has the signal handlers of a Go program, but not its threads, so no signal but
	// SIGKILL may reach it.
	var all, before unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &before)
	if err != nil {
		runtime.UnlockOSThread()
		return userNamespaceHolder{}, fmt.Errorf("block signals: %w", err)
	}
	args := cloneArgs{flags: unix.CLONE_NEWUSER, exitSignal: uint64(unix.SIGCHLD)}
	pid, errno := forkHolder(&args, uintptr(os.Getpid()))
	err = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil)
	if errno != 0 {
		runtime.UnlockOSThread()
		return userNamespaceHolder{}, errno
	}
	h := userNamespaceHolder{int(pid)}
	if err != nil {
		return userNamespaceHolder{}, fmt.Errorf("unblock signals: %w", errors.Join(err, h.release()))
	}
	return h, nil
}

// forkHolder returns only in the parent. The child has one thread and the memory of a runtime that
// expects more, so it makes system calls and touches nothing else, as in forkAndExecInChild of Go's
// package syscall.
//
//go:norace
//go:nosplit
func forkHolder(args *cloneArgs, parent uintptr) (pid uintptr, errno syscall.Errno) {
	pid, _, errno = syscall.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(args)), unsafe.Sizeof(*args), 0)
	if errno != 0 || pid != 0 {
		return pid, errno
	}
	// If the parent dies before the first call, the second detects it; after the first call, the
	// kernel kills the child with the parent.
	_, _, errno = syscall.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0)
	of, _, _ := syscall.RawSyscall(unix.SYS_GETPPID, 0, 0, 0)
	for errno == 0 && of == parent {
		_, _, _ = syscall.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0) // waits forever
	}
	for {
		_, _, _ = syscall.RawSyscall(unix.SYS_EXIT_GROUP, 1, 0, 0)
	}
}

func (h userNamespaceHolder) file(name string) string { return fmt.Sprintf("/proc/%d/%s", h.pid, name) }

// release kills the process, and waits until it is gone.
func (h userNamespaceHolder) release() error {
	defer runtime.UnlockOSThread()
	if err := unix.Kill(h.pid, unix.SIGKILL); err != nil {
		return fmt.Errorf("end process %d: %w", h.pid, err)
	}
	for {
		if _, err := unix.Wait4(h.pid, nil, 0, nil); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
