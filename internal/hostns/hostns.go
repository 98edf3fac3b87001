// Package hostns moves a whole process into the namespaces of its host.
//
// The node daemon's image holds only flexlvm's programs, and a node must have only one LVM, one udev and one
// lock directory: the host's. A process with several threads cannot change its mount namespace, and a Go
// program has several threads before main begins. So one thread changes its namespaces alone and then executes
// the program again, by file descriptor, because it can no longer see the image. execve ends the other threads
// and keeps the namespaces of the calling thread.
package hostns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// carried is the environment variable that marks the second process and holds the file descriptors of its
// directories, separated by commas. The second process unsets it first, so no child inherits it.
const carried = "FLEXLVM_HOSTNS_DIR_FDS"

// absent replaces the file descriptor of a directory that does not exist.
const absent = -1

// A namespace is a kind of namespace of the host's init to enter.
type namespace struct {
	name string
	flag int
}

// namespaces returns the namespaces in the order in which they are entered. The mount namespace is last,
// because entering it changes what every path means. LVM and udev wait for each other on semaphores (ipc),
// udev's messages arrive over netlink (net), and LVM uses the host's name (uts). From within another cgroup
// namespace, no process can be started in a cgroup of the host.
func namespaces() []namespace {
	return []namespace{
		{"ipc", unix.CLONE_NEWIPC},
		{"uts", unix.CLONE_NEWUTS},
		{"net", unix.CLONE_NEWNET},
		{"cgroup", unix.CLONE_NEWCGROUP},
		{"mnt", unix.CLONE_NEWNS},
	}
}

// Enter returns once the process is in its host's namespaces. dirs are directories of the pod. Enter returns their
// paths in the host's namespaces, "" for a directory that does not exist. Later changes in the directories are
// visible there, but mounts below them are not.
//
// Enter may execute the program again, with the same arguments, so it must be called before anything that
// matters has begun. It does nothing in a process that is in those namespaces already, for example one started
// by hand on the host.
func Enter(dirs ...string) ([]string, error) {
	if value, second := os.LookupEnv(carried); second {
		return arrived(value, len(dirs))
	}
	away, err := elsewhere()
	if err != nil {
		return nil, err
	}
	if os.Getpid() == 1 {
		return nil, errors.New("enter the host's namespaces: this process is process 1, so the pod does not see the host's; set hostPID: true (or --host-namespaces=false)")
	}
	if len(away) == 0 {
		return dirs, nil
	}
	return nil, cross(dirs)
}

// elsewhere returns the names of the namespaces that this process does not share with the host's init.
func elsewhere() ([]string, error) {
	var away []string
	for _, n := range namespaces() {
		host, err := os.Readlink("/proc/1/ns/" + n.name)
		if err != nil {
			return nil, fmt.Errorf("check the host's namespaces: %w; the pod must be privileged and have hostPID: true", err)
		}
		own, err := os.Readlink("/proc/thread-self/ns/" + n.name)
		if err != nil {
			return nil, fmt.Errorf("check the namespaces of this process: %w", err)
		}
		if own != host {
			away = append(away, n.name)
		}
	}
	return away, nil
}

// cross moves this thread into the host's namespaces and executes the program there. It returns only on
// failure. The caller then has to exit, because the thread may be in a mix of namespaces.
func cross(dirs []string) error {
	runtime.LockOSThread()
	program, err := os.Open("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("open the program itself: %w", err)
	}
	carry, err := openDirs(dirs)
	if err != nil {
		return err
	}
	// The thread must not share its root and working directory with the others.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare this thread's root and working directory: %w", err)
	}
	if err := setAll(); err != nil {
		return err
	}
	env := append(os.Environ(), carried+"="+carry)
	err = syscall.Exec("/proc/self/fd/"+strconv.Itoa(int(program.Fd())), os.Args, env)
	return fmt.Errorf("execute the program in the host's namespaces: %w; /proc must be mounted on the host", err)
}

// openDirs opens dirs for the second process, and returns the value of the variable carried.
func openDirs(dirs []string) (string, error) {
	fds := make([]string, 0, len(dirs))
	for _, dir := range dirs {
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0) // without O_CLOEXEC: the second process uses it
		if errors.Is(err, unix.ENOENT) {
			fd, err = absent, nil
		}
		if err != nil {
			return "", fmt.Errorf("open %s: %w", dir, err)
		}
		fds = append(fds, strconv.Itoa(fd))
	}
	return strings.Join(fds, ","), nil
}

// setAll enters all namespaces. It opens all of them first: in the host's mount namespace, /proc is another
// one.
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

// arrived is the second process's Enter.
func arrived(value string, count int) ([]string, error) {
	if err := os.Unsetenv(carried); err != nil {
		return nil, fmt.Errorf("clean up the environment: %w", err)
	}
	away, err := elsewhere()
	if err != nil {
		return nil, err
	}
	if len(away) > 0 {
		return nil, fmt.Errorf("enter the host's namespaces: still outside of %v after entering; unset %s", away, carried)
	}
	// For a program executed by descriptor, the kernel uses the descriptor's number as its name. The name is
	// only for people.
	_ = os.WriteFile("/proc/self/comm", []byte(filepath.Base(os.Args[0])), 0)
	paths, err := openedDirs(value)
	if err == nil && len(paths) != count {
		err = fmt.Errorf("%s is %q, but %d directories are expected; unset it", carried, value, count)
	}
	return paths, err
}

// openedDirs returns the paths of the directories that openDirs opened, from the value of the variable carried.
func openedDirs(value string) (paths []string, err error) {
	if value == "" {
		return nil, nil
	}
	for _, number := range strings.Split(value, ",") {
		fd, err := strconv.Atoi(number)
		if err != nil {
			return nil, fmt.Errorf("%s is %q, and %q is not a file descriptor; unset it", carried, value, number)
		}
		if fd == absent {
			paths = append(paths, "")
			continue
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return nil, fmt.Errorf("%s is %q, and %q is not an open directory; unset it", carried, value, number)
		}
		unix.CloseOnExec(fd) // child programs must not inherit the directory
		paths = append(paths, "/proc/self/fd/"+number)
	}
	return paths, nil
}
