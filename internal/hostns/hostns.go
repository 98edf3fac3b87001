// Package hostns moves a whole process into the namespaces of its host.
//
// The node daemon's image holds only our own programs, and there must be one LVM, one
// udev and one lock directory on a node: the host's. A process with several threads
// cannot change its mount namespace, and a Go program has several threads before main
// begins. So one thread changes namespaces alone and then executes the program again, by
// file descriptor, because it can no longer see the image; execve ends the other threads
// and keeps the namespaces of the caller.
package hostns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// carried is the environment variable by which the first process tells the second
// that it is the second, and under which descriptor it finds its directory. It is
// taken away at once, and no child inherits it.
const carried = "FLEXLVM_HOSTNS_DIR_FD"

// A namespace of the host's init that we move into.
type namespace struct {
	name string
	flag int
}

// namespaces in the order in which they are entered: the mount namespace comes
// last, for entering it changes what every path means. LVM and udev wait for each
// other on semaphores (ipc), by the host's name (uts), and udev's messages come
// over netlink (net). From within another cgroup namespace no process can be started in a
// group of the host's.
func namespaces() []namespace {
	return []namespace{
		{"ipc", unix.CLONE_NEWIPC},
		{"uts", unix.CLONE_NEWUTS},
		{"net", unix.CLONE_NEWNET},
		{"cgroup", unix.CLONE_NEWCGROUP},
		{"mnt", unix.CLONE_NEWNS},
	}
}

// Enter returns once the process is in the namespaces of its host. It returns the path of
// dir, a directory of the pod, as seen from there, or "" if there is no such directory.
// Later changes in dir are visible.
//
// It may execute the program again, with the same arguments, so it must be called before
// anything that matters has begun. A process that is in those namespaces already, for
// example started by hand on the host, is left as it is.
func Enter(dir string) (string, error) {
	if value, second := os.LookupEnv(carried); second {
		return arrived(value)
	}
	away, err := elsewhere()
	if err != nil {
		return "", err
	}
	if os.Getpid() == 1 {
		return "", errors.New("enter the host's namespaces: this process is process 1, so the pod does not see the host's; set hostPID: true (or --host-namespaces=false)")
	}
	if len(away) == 0 {
		return dir, nil
	}
	return "", cross(dir)
}

// elsewhere names the namespaces in which the host's init is and we are not.
func elsewhere() ([]string, error) {
	var away []string
	for _, n := range namespaces() {
		host, err := os.Readlink("/proc/1/ns/" + n.name)
		if err != nil {
			return nil, fmt.Errorf("look at the host's namespaces: %w; the pod must be privileged and have hostPID: true", err)
		}
		own, err := os.Readlink("/proc/thread-self/ns/" + n.name)
		if err != nil {
			return nil, fmt.Errorf("look at the namespaces of this process: %w", err)
		}
		if own != host {
			away = append(away, n.name)
		}
	}
	return away, nil
}

// cross moves this thread into the host's namespaces and executes the program
// there. It returns only if that fails, and the caller has to end then: a thread
// in two worlds is of no use.
func cross(dir string) error {
	runtime.LockOSThread()
	program, err := os.Open("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("open the program itself: %w", err)
	}
	carry, err := openDir(dir)
	if err != nil {
		return err
	}
	// The thread must not share its root and working directory with the others.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("part this thread from the others: %w", err)
	}
	if err := setAll(); err != nil {
		return err
	}
	env := append(os.Environ(), carried+"="+strconv.Itoa(carry))
	err = syscall.Exec("/proc/self/fd/"+strconv.Itoa(int(program.Fd())), os.Args, env)
	return fmt.Errorf("execute the program in the host's namespaces: %w; /proc must be mounted on the host", err)
}

// openDir opens dir for the second process; -1 where it does not exist.
func openDir(dir string) (int, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0) // without O_CLOEXEC: it is for the next program
	if errors.Is(err, unix.ENOENT) {
		return -1, nil
	}
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", dir, err)
	}
	return fd, nil
}

// setAll opens all before it enters any: afterwards /proc is another.
func setAll() error {
	files := make([]*os.File, 0, len(namespaces()))
	for _, n := range namespaces() {
		f, err := os.Open("/proc/1/ns/" + n.name)
		if err != nil {
			return fmt.Errorf("open the host's %s namespace: %w; the pod must be privileged and have hostPID: true", n.name, err)
		}
		defer func() { _ = f.Close() }()
		files = append(files, f)
	}
	for i, n := range namespaces() {
		if err := unix.Setns(int(files[i].Fd()), n.flag); err != nil {
			return fmt.Errorf("enter the host's %s namespace: %w; the container must be privileged", n.name, err)
		}
	}
	return nil
}

// arrived is Enter in the second process.
func arrived(value string) (string, error) {
	if err := os.Unsetenv(carried); err != nil {
		return "", fmt.Errorf("tidy the environment: %w", err)
	}
	away, err := elsewhere()
	if err != nil {
		return "", err
	}
	if len(away) > 0 {
		return "", fmt.Errorf("enter the host's namespaces: still outside of %v after it was done; unset %s", away, carried)
	}
	// The kernel names a program that was executed by descriptor after the number.
	// A name is for people only.
	_ = os.WriteFile("/proc/self/comm", []byte(filepath.Base(os.Args[0])), 0)
	fd, err := strconv.Atoi(value)
	if err != nil {
		return "", fmt.Errorf("%s is %q, not a descriptor; unset it", carried, value)
	}
	if fd < 0 {
		return "", nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return "", fmt.Errorf("%s is %q, which is no open directory; unset it", carried, value)
	}
	unix.CloseOnExec(fd) // what this program executes must not have the token
	return "/proc/self/fd/" + value, nil
}
