package vm

import (
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

// A qemuMachine is a machine type of qemu.
type qemuMachine struct {
	program, board, console string
	processor               []string
	append                  []string // kernel arguments
}

var qemuMachines = map[string]qemuMachine{
	// Without arch-capabilities, a register that KVM offers and then refuses to set in some virtual machines.
	KVM: {"qemu-system-x86_64", "q35", "ttyS0", []string{"-accel", "kvm", "-cpu", "host,-arch-capabilities"}, nil},
	// The newest emulated processors make the guest's programs choose wide vector instructions, which emulate slowly:
	// tests of the engine took 158 s on "max" and 133 s on Nehalem. Westmere adds AES, which encrypted volumes use.
	TCG:   {"qemu-system-x86_64", "q35", "ttyS0", []string{"-accel", "tcg,thread=multi", "-cpu", "Westmere"}, emulated},
	ARM64: {"qemu-system-aarch64", "virt", "ttyAMA0", []string{"-accel", "tcg,thread=multi", "-cpu", "cortex-a72"}, emulated},
}

// emulated are kernel arguments for an emulated processor. The emulator translates code again at each new address, so
// programs are always at the same ones: tests of the engine took 28 s instead of 44 s.
var emulated = []string{"norandmaps"}

// qemuArguments returns the program and arguments that run a machine in qemu.
func qemuArguments(kernel string, m qemuMachine, h Hardware) ([]string, error) {
	program, err := exec.LookPath(m.program)
	if err != nil {
		return nil, fmt.Errorf("find qemu: %w; run test/setup.sh, and test/setup.sh arm64 for that processor", err)
	}
	args := []string{
		program,
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", m.board, "-m", strconv.Itoa(h.Memory), "-smp", strconv.Itoa(h.CPUs),
		"-kernel", kernel, "-initrd", h.Initrd,
		"-append", strings.Join(append([]string{
			"console=" + m.console, "net.ifnames=0", "random.trust_cpu=on", "mitigations=off",
			"no_timer_check", // on a busy machine the emulated timer is late, and the kernel would panic
		}, slices.Concat(m.append, h.Append)...), " "),
		"-chardev", "file,id=console,append=on,path=" + escape(h.Console), "-serial", "chardev:console",
		"-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng",
	}
	args = append(args, m.processor...)
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
	return args, nil
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
	// A disk that nobody writes to may be in use on another backend, whose lock would make qemu fail.
	drive += locking
	device := fmt.Sprintf("virtio-blk-pci,drive=drive%d", i)
	if d.Serial != "" {
		device += ",serial=" + escape(d.Serial)
	}
	return []string{"-drive", drive, "-device", device}
}

// escape escapes a value in one of qemu's lists.
func escape(value string) string { return strings.ReplaceAll(value, ",", ",,") }
