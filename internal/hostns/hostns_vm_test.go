//go:build vm

package hostns_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/hostns"
)

// Run as root, on any machine where root may make namespaces:
//
//	go test -tags vm ./internal/hostns
//
// The tests run in a process namespace of their own, so that its process 1, the
// host's init to them, is the test itself.

const (
	role    = "FLEXLVM_TEST_ROLE" // a pod's process: holds its directory
	nested  = "FLEXLVM_TEST_INIT"
	nowhere = "/nowhere"
	listing = "list" // a child of the pod's process
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(role) == listing:
		if err := list(); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
	case os.Getenv(role) != "":
		if err := pod(os.Getenv(role)); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
	case os.Getenv(nested) == "":
		os.Exit(asInit())
	default:
		if err := ownProc(); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
}

// asInit runs the tests as process 1 of namespaces of their own.
func asInit() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), nested+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		fmt.Println("run the tests in namespaces of their own (this needs root):", err)
		return 1
	}
	return 0
}

func ownProc() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("part from the machine's mounts: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return nil
}

func pod(dir string) error {
	if _, second := os.LookupEnv("FLEXLVM_HOSTNS_DIR_FDS"); !second && dir != nowhere && os.Getenv("MOUNT") != "" {
		if err := mountToken(dir); err != nil {
			return err
		}
	}
	if os.Getenv("DROP") != "" {
		if err := dropCapabilities(); err != nil {
			return err
		}
	}
	paths, err := hostns.Enter(dir, "/", nowhere)
	if err != nil {
		return err
	}
	path := paths[0]
	fmt.Println("path", path)
	fmt.Println("other", paths[1])
	fmt.Println("missing", paths[2])
	for _, n := range []string{"ipc", "uts", "net", "cgroup", "mnt"} {
		link, err := os.Readlink("/proc/self/ns/" + n)
		if err != nil {
			return err
		}
		fmt.Println(n, link)
	}
	comm, err := os.ReadFile("/proc/self/comm")
	fmt.Println("comm", strings.TrimSpace(string(comm)), err)
	fmt.Println("env", os.Getenv("FLEXLVM_HOSTNS_DIR_FDS"))
	_, err = os.Stat(dir)
	fmt.Println("seen", err == nil)
	if path == "" {
		return nil
	}
	return readTwice(path)
}

// dropCapabilities leaves this thread what a container has that is not privileged.
func dropCapabilities() error {
	runtime.LockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	none := [2]unix.CapUserData{}
	return unix.Capset(&header, &none[0])
}

// mountToken lays a token out as the kubelet does, on a file system that only
// this mount namespace has.
func mountToken(dir string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
		return err
	}
	for _, version := range []string{"1", "2"} {
		if err := os.Mkdir(dir+"/.."+version, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(dir+"/.."+version+"/token", []byte("token "+version), 0o600); err != nil {
			return err
		}
	}
	if err := os.Symlink("..1", dir+"/..data"); err != nil {
		return err
	}
	return os.Symlink("..data/token", dir+"/token")
}

// readTwice reads the token before and after the kubelet has put another in its
// place, and asks a child what descriptors it has.
func readTwice(path string) error {
	first, err := os.ReadFile(path + "/token")
	if err != nil {
		return err
	}
	fmt.Println("first", string(first))
	if err := os.Symlink("..2", path+"/..data_tmp"); err != nil {
		return err
	}
	if err := os.Rename(path+"/..data_tmp", path+"/..data"); err != nil {
		return err
	}
	second, err := os.ReadFile(path + "/token")
	if err != nil {
		return err
	}
	fmt.Println("second", string(second))
	child := exec.Command("/proc/self/exe")
	child.Env = append(os.Environ(), role+"="+listing)
	child.Stdout = os.Stdout
	return child.Run()
}

// list says what descriptors this process was given.
func list() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	fmt.Print("fds")
	for _, e := range entries {
		fmt.Print(" ", e.Name())
	}
	fmt.Println()
	return nil
}

// enter runs a process in a pod's namespaces and returns what it said.
func enter(t *testing.T, dir string, flags uintptr, env ...string) (map[string]string, string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{"/image/gc"}
	cmd.Env = append(append(os.Environ(), role+"="+dir), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	out, _ := cmd.CombinedOutput()
	said := map[string]string{}
	for line := range strings.Lines(string(out)) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		said[word] = rest
	}
	return said, string(out)
}

const asPod = syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS | syscall.CLONE_NEWNET | syscall.CLONE_NEWCGROUP

func TestEnter(t *testing.T) {
	dir := t.TempDir()
	said, out := enter(t, dir, asPod, "MOUNT=1")
	for _, n := range []string{"ipc", "uts", "net", "cgroup", "mnt"} {
		host, err := os.Readlink(filepath.Join("/proc/1/ns", n))
		require.NoError(t, err)
		require.Equal(t, host, said[n], out)
	}
	require.Contains(t, said["path"], "/proc/self/fd/", out)
	require.Equal(t, "token 1", said["first"], out)
	require.Equal(t, "token 2", said["second"], "a token that was replaced is not seen: %s", out)
	require.Equal(t, "gc <nil>", said["comm"], out)
	require.Empty(t, said["env"], out)
	require.NotContains(t, strings.Fields(said["fds"]), filepath.Base(said["path"]), "a child inherits the token")
	require.Contains(t, said["other"], "/proc/self/fd/", out)
	require.NotEqual(t, said["path"], said["other"], out)
	require.NotContains(t, strings.Fields(said["fds"]), filepath.Base(said["other"]), "a child inherits the other directory")
	require.Contains(t, said, "missing", out)
	require.Empty(t, said["missing"], out)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries, "the host sees the pod's token")
}

func TestEnterWithoutServiceAccount(t *testing.T) {
	said, out := enter(t, nowhere, asPod)
	require.Contains(t, said, "path", out)
	require.Empty(t, said["path"], out)
}

func TestEnterOnTheHost(t *testing.T) {
	said, out := enter(t, nowhere, 0)
	require.Equal(t, nowhere, said["path"], "by hand on the host nothing is to be done: %s", out)
}

func TestEnterWithoutHostPID(t *testing.T) {
	_, out := enter(t, nowhere, asPod|syscall.CLONE_NEWPID)
	require.Contains(t, out, "hostPID: true", "what the pod lacks is not said")
}

func TestEnterTwice(t *testing.T) {
	_, out := enter(t, nowhere, asPod, "FLEXLVM_HOSTNS_DIR_FDS=7")
	require.Contains(t, out, "still outside of [ipc uts net cgroup mnt]", "a program that executes itself for ever")
}

func TestEnterUnprivileged(t *testing.T) {
	_, out := enter(t, nowhere, asPod, "DROP=1")
	require.Contains(t, out, "the pod must be privileged")
}
