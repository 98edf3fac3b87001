//go:build linux

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/test/vm/wire"
)

// rootSerial is the serial number of the disk with the root file system.
const rootSerial = "flexlvm-root"

// lvmWithoutUdev are the settings that LVM needs without udevd: with its defaults it would wait for device nodes
// that nobody creates.
const lvmWithoutUdev = `activation {
	udev_sync = 0
	udev_rules = 0
	verify_udev_operations = 0
	monitoring = 0
}
devices {
	obtain_device_list_from_udev = 0
	external_device_info_source = "none"
	use_devicesfile = 0
}
`

// parameters are the host's settings on the kernel's command line.
type parameters struct {
	writableRoot bool   // flexlvm.root=rw: the root disk itself, not a throw-away layer on it
	udev         bool   // flexlvm.udev=1
	init         string // flexlvm.init=PATH: replaces this program as process 1
	ports        string // flexlvm.ports=NAME:TTY,…: serial lines that replace virtio ports
	control      string // flexlvm.control=PORT: the port on which the host listens
}

func readParameters() (parameters, error) {
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return parameters{}, err
	}
	var p parameters
	for _, word := range strings.Fields(string(line)) {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "flexlvm.root":
			p.writableRoot = value == "rw"
		case "flexlvm.udev":
			p.udev = value == "1"
		case "flexlvm.init":
			p.init = value
		case "flexlvm.ports":
			p.ports = value
		case wire.ControlArg:
			p.control = value
		}
	}
	return p, nil
}

// boot enters the root file system from the initrd and sets up the usual mounts.
func boot() error {
	for _, m := range []mount{
		{"devtmpfs", "/dev", "devtmpfs", 0, ""},
		{"proc", "/proc", "proc", 0, ""},
		{"sysfs", "/sys", "sysfs", 0, ""},
	} {
		if err := m.do(); err != nil {
			return err
		}
	}
	p, err := readParameters()
	if err != nil {
		return err
	}
	if err := loadModules("/modules"); err != nil {
		return err
	}
	if err := linkPorts(p.ports); err != nil {
		return err
	}
	if err := mountRoot(p.writableRoot); err != nil {
		return err
	}
	if err := placeFiles("/files", newRoot); err != nil {
		return err
	}
	if err := enterRoot(); err != nil {
		return err
	}
	if p.init != "" {
		return unix.Exec(p.init, []string{p.init}, os.Environ())
	}
	if err := furnish(); err != nil {
		return err
	}
	return setUpUdev(p.udev)
}

// loadModules loads the modules in a directory in the order of their names.
func loadModules(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.ko"))
	if err != nil {
		return err
	}
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		_ = f.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("load module %s: %w", filepath.Base(file), err)
		}
	}
	return nil
}

// rootDisk finds the device node of the disk with the serial number rootSerial.
func rootDisk() (string, error) {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		files, _ := filepath.Glob("/sys/block/vd*/serial")
		for _, file := range files {
			serial, err := os.ReadFile(file)
			if err == nil && strings.TrimSpace(string(serial)) == rootSerial {
				return "/dev/" + filepath.Base(filepath.Dir(file)), nil
			}
		}
	}
	return "", fmt.Errorf("find root disk: no disk has the serial number %s", rootSerial)
}

// placeFiles copies the host's additions to the initrd into the root. It copies them because a layer on top would
// not do: a directory "bin" in a layer would hide the link of that name.
func placeFiles(from, to string) error {
	err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(to, strings.TrimPrefix(path, from))
		if entry.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		return moveFile(path, target, entry)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func moveFile(from, to string, entry fs.DirEntry) error {
	if entry.Type()&fs.ModeSymlink != 0 {
		link, err := os.Readlink(from)
		if err != nil {
			return err
		}
		_ = os.Remove(to)
		return os.Symlink(link, to)
	}
	info, err := entry.Info()
	if err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	_ = os.Remove(to) // never write through a link or into a running program
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	if _, err = out.ReadFrom(in); err == nil {
		err = out.Chmod(info.Mode().Perm())
	}
	if closeErr := out.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Remove(from) // frees its memory
}

// setUpUdev starts udevd, or configures LVM to work without it.
func setUpUdev(udev bool) error {
	const local = "/etc/lvm/lvmlocal.conf"
	if !udev {
		return os.WriteFile(local, []byte(lvmWithoutUdev), 0o644)
	}
	if err := os.WriteFile(local, nil, 0o644); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"/lib/systemd/systemd-udevd", "--daemon"},
		{"/bin/udevadm", "trigger", "--action=add", "--subsystem-match=block", "--subsystem-match=misc"},
		{"/bin/udevadm", "settle", "--timeout=60"},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("start udev: %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}
