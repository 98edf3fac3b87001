package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// portName is the name of the virtio-serial port of the guest's process 1.
const portName = "flexlvm.guest"

// Drive is a virtio disk.
type Drive struct {
	Path     string
	Format   string // "raw" or "qcow2"
	ReadOnly bool
	// Unsafe ignores the guest's flushes: faster, and wrong where power is cut
	// under a qcow2 image.
	Unsafe bool
	// Serial is what the guest reads as /sys/block/vdX/serial.
	Serial string
}

// NIC is a virtio network card on a tap device that exists.
type NIC struct {
	Tap string
	MAC string
}

// Qemu says how to start qemu. All fields but Kernel may be empty.
type Qemu struct {
	Kernel string
	Initrd string
	Append []string // kernel arguments
	// Dir gets qemu.log; empty for none.
	Dir string
	// Console is the file that gets what the kernel prints.
	Console string
	Accel   []string // arguments; see Accelerator
	CPUs    int
	Memory  int // MiB
	Drives  []Drive
	NICs    []NIC
	// Guest is our end's peer of a socket pair, the port of process 1.
	Guest *os.File
	// NetNS is the path of a network namespace to run in.
	NetNS string
	// Reboot lets the guest reboot; else a reboot ends qemu.
	Reboot bool
}

// Process is a running qemu. It dies with the process that started it.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // after done
	log  string
}

// arguments is qemu's command line.
func (q Qemu) arguments() []string {
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none",
		"-machine", "q35", "-m", strconv.Itoa(q.Memory), "-smp", strconv.Itoa(q.CPUs),
		"-kernel", q.Kernel, "-append", strings.Join(q.Append, " "),
	}
	args = append(args, q.Accel...)
	if !q.Reboot {
		args = append(args, "-no-reboot")
	}
	if q.Initrd != "" {
		args = append(args, "-initrd", q.Initrd)
	}
	if q.Console != "" {
		args = append(args, "-chardev", "file,id=console,append=on,path="+escape(q.Console), "-serial", "chardev:console")
	}
	if q.Guest != nil {
		args = append(args, "-device", "virtio-serial-pci",
			"-chardev", "socket,id=guest,fd=3",
			"-device", "virtserialport,chardev=guest,name="+portName)
	}
	for i, d := range q.Drives {
		args = append(args, d.arguments(i)...)
	}
	for i, n := range q.NICs {
		args = append(args,
			"-netdev", fmt.Sprintf("tap,id=net%d,ifname=%s,script=no,downscript=no", i, escape(n.Tap)),
			"-device", fmt.Sprintf("virtio-net-pci,romfile=,netdev=net%d,mac=%s", i, n.MAC))
	}
	return args
}

func (d Drive) arguments(i int) []string {
	cache := "writeback"
	if d.Unsafe {
		cache = "unsafe"
	}
	drive := fmt.Sprintf("if=none,id=drive%d,file=%s,format=%s,cache=%s,discard=unmap", i, escape(d.Path), d.Format, cache)
	if d.ReadOnly {
		drive += ",readonly=on"
	}
	device := fmt.Sprintf("virtio-blk-pci,drive=drive%d", i)
	if d.Serial != "" {
		device += ",serial=" + escape(d.Serial)
	}
	return []string{"-drive", drive, "-device", device}
}

// escape protects a value in one of qemu's lists.
func escape(value string) string { return strings.ReplaceAll(value, ",", ",,") }

// Start starts qemu. It is killed when ctx ends.
func (q Qemu) Start(ctx context.Context) (*Process, error) {
	binary, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		return nil, fmt.Errorf("start qemu: %w; run test/setup.sh", err)
	}
	p := &Process{cmd: exec.CommandContext(ctx, binary, q.arguments()...), done: make(chan struct{})}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if q.Guest != nil {
		p.cmd.ExtraFiles = []*os.File{q.Guest}
	}
	if q.Dir != "" {
		p.log = filepath.Join(q.Dir, "qemu.log")
		log, err := os.Create(p.log)
		if err != nil {
			return nil, err
		}
		defer log.Close()
		p.cmd.Stdout, p.cmd.Stderr = log, log
	}
	started := make(chan error, 1)
	go p.run(q.NetNS, started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start qemu: %w", err)
	}
	return p, nil
}

// run starts qemu and waits for its end on a thread of its own, since the death
// signal comes when that thread ends. The thread is never given back: it may be
// in another network namespace.
func (p *Process) run(netns string, started chan<- error) {
	runtime.LockOSThread()
	if err := enterNetNS(netns); err != nil {
		started <- err
		return
	}
	if err := p.cmd.Start(); err != nil {
		started <- err
		return
	}
	started <- nil
	p.err = p.cmd.Wait()
	close(p.done)
}

func enterNetNS(path string) error {
	if path == "" {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", path, err)
	}
	return nil
}

// PID returns qemu's process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when qemu has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for qemu's end. A guest that switched itself off is no error.
func (p *Process) Wait() error {
	<-p.done
	if p.err == nil {
		return nil
	}
	return errors.Join(p.err, tailError("qemu said", p.log))
}

// Kill ends qemu at once, as a power cut does, and waits until it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// CreateOverlay makes a qcow2 image at path that holds the changes to the raw
// image base.
func CreateOverlay(ctx context.Context, path, base string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", base, path)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("create disk %s: %w: %s", path, err, out)
	}
	return nil
}

// tailError returns the last lines of a file as an error, or those that begin
// with a kernel's panic; nil if the file is empty.
func tailError(title, file string) error {
	b, err := os.ReadFile(file)
	text := strings.TrimSpace(strings.ReplaceAll(string(b), "\r", ""))
	if err != nil || text == "" {
		return nil
	}
	const most = 40
	lines := strings.Split(text, "\n")
	panicked := slices.IndexFunc(lines, func(line string) bool { return strings.Contains(line, "Kernel panic") })
	switch {
	case panicked >= 0:
		lines = lines[panicked:min(panicked+most, len(lines))]
	case len(lines) > most:
		lines = append([]string{"…"}, lines[len(lines)-most:]...)
	}
	return fmt.Errorf("%s:\n\t%s", title, strings.Join(lines, "\n\t"))
}
