package vm

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// qemuArguments is the command line of a machine in qemu.
func qemuArguments(kernel string, accel []string, h Hardware) []string {
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", "q35", "-m", strconv.Itoa(h.Memory), "-smp", strconv.Itoa(h.CPUs),
		"-kernel", kernel, "-initrd", h.Initrd,
		"-append", strings.Join(append([]string{
			"console=ttyS0", "net.ifnames=0", "random.trust_cpu=on", "mitigations=off",
			"no_timer_check", // on a busy machine the emulated timer is late, and the kernel panics over it
		}, h.Append...), " "),
		"-chardev", "file,id=console,append=on,path=" + escape(h.Console), "-serial", "chardev:console",
		"-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng",
	}
	args = append(args, accel...)
	if len(h.Ports) > 0 {
		args = append(args, "-device", "virtio-serial-pci")
	}
	for _, p := range h.Ports {
		args = append(args,
			"-chardev", fmt.Sprintf("file,id=%s,append=on,path=%s", p.Name, escape(p.File)),
			"-device", fmt.Sprintf("virtserialport,chardev=%[1]s,name=%[1]s", p.Name))
	}
	for i, d := range h.Drives {
		args = append(args, d.qemuArguments(i)...)
	}
	for i, n := range h.NICs {
		args = append(args,
			"-netdev", fmt.Sprintf("tap,id=net%d,ifname=%s,script=no,downscript=no", i, escape(n.Tap)),
			"-device", fmt.Sprintf("virtio-net-pci,romfile=,netdev=net%d,mac=%s", i, n.MAC))
	}
	return args
}

func (d Drive) qemuArguments(i int) []string {
	format, cache, locking := "raw", "writeback", ""
	if d.Base != "" {
		format = "qcow2"
		locking = ",backing.file.locking=off"
	}
	if d.Unsafe {
		cache = "unsafe"
	}
	drive := fmt.Sprintf("if=none,id=drive%d,file=%s,format=%s,cache=%s,discard=unmap", i, escape(d.Path), format, cache)
	if d.ReadOnly {
		drive += ",readonly=on"
		locking = ",file.locking=off"
	}
	// What nobody writes to may be in use on another backend, which locks otherwise.
	drive += locking
	device := fmt.Sprintf("virtio-blk-pci,drive=drive%d", i)
	if d.Serial != "" {
		device += ",serial=" + escape(d.Serial)
	}
	return []string{"-drive", drive, "-device", device}
}

// escape protects a value in one of qemu's lists.
func escape(value string) string { return strings.ReplaceAll(value, ",", ",,") }

func findQemu() (string, error) {
	binary, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		return "", fmt.Errorf("find qemu: %w; run test/setup.sh", err)
	}
	return binary, nil
}
