package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/test/vm/wire"
)

// Limits and sizes where a Config says nothing.
const (
	DefaultTimeout = 10 * time.Minute
	DefaultMemory  = 1024 // MiB
	DefaultCPUs    = 2

	bootLimit     = 2 * time.Minute
	powerOffLimit = 30 * time.Second
)

// Disk is a disk of a guest.
type Disk struct {
	// Size in bytes of a fresh, sparse disk that goes with the machine.
	Size int64
	// Path of a raw image to use instead, which stays.
	Path string
	// Serial is what the guest reads as /sys/block/vdX/serial.
	Serial string
	// Unsafe ignores flushes.
	Unsafe bool
}

// Config says what machine to start. The zero value is a usable guest without
// disks.
type Config struct {
	Disks []Disk
	// Files are copied into the guest at every boot, before anything runs: path
	// in the guest → file or folder here.
	Files map[string]string
	// Udev starts systemd-udevd, so that LVM runs with its defaults. Without, LVM
	// is configured to make its device nodes by itself, and the boot is faster.
	Udev bool
	// Root is an image (qcow2) to use as writable root file system in place of
	// the shared one with its throw-away layer.
	Root string
	NICs []NIC
	// NetNS is the path of a network namespace that qemu runs in.
	NetNS      string
	Memory     int // MiB
	CPUs       int
	KernelArgs []string
	// Timeout bounds the machine's life.
	Timeout time.Duration
	// Progress is told of long steps; os.Stderr if nil.
	Progress io.Writer

	images Images
	accel  []string
}

// Machine is a virtual machine.
type Machine struct {
	config Config
	dir    *RunDir
	drives []Drive
	initrd string
	ctx    context.Context // its life
	cancel context.CancelFunc

	mu       sync.Mutex
	process  *Process // nil while switched off
	port     net.Conn
	guest    *guest
	bootTime time.Duration
}

// Start boots a machine and returns when it is ready for Exec. It lives until
// Close, the end of ctx, or Config.Timeout.
func Start(ctx context.Context, c Config) (*Machine, error) {
	if c.Progress == nil {
		c.Progress = os.Stderr
	}
	var err error
	if c.images, err = BuildImages(ctx, c.Progress); err != nil {
		return nil, err
	}
	if c.accel, err = Accelerator(ctx, c.images); err != nil {
		return nil, err
	}
	m, err := prepare(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("prepare machine: %w", err)
	}
	if err := m.Boot(ctx); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// prepare makes the files of a machine.
func prepare(ctx context.Context, c Config) (*Machine, error) {
	if c.Memory == 0 {
		c.Memory = DefaultMemory
	}
	if c.CPUs == 0 {
		c.CPUs = DefaultCPUs
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	dir, err := NewRunDir(ctx, "vm")
	if err != nil {
		return nil, err
	}
	m := &Machine{config: c, dir: dir}
	m.ctx, m.cancel = context.WithTimeoutCause(ctx, c.Timeout, fmt.Errorf("the machine has used up its %s", c.Timeout))
	if err := errors.Join(m.makeDrives(), m.makeInitrd()); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func (m *Machine) makeDrives() error {
	for i, d := range m.config.Disks {
		path := d.Path
		if path == "" {
			path = filepath.Join(m.dir.Path, fmt.Sprintf("disk%d", i))
			if err := makeSparse(path, d.Size); err != nil {
				return fmt.Errorf("make disk %d: %w", i, err)
			}
		}
		m.drives = append(m.drives, Drive{Path: path, Format: "raw", Unsafe: d.Unsafe, Serial: d.Serial})
	}
	root := Drive{Path: m.config.images.NodeDisk, Format: "raw", ReadOnly: true, Serial: RootSerial}
	if m.config.Root != "" {
		root = Drive{Path: m.config.Root, Format: "qcow2", Serial: RootSerial}
	}
	m.drives = append(m.drives, root)
	return nil
}

// RootSerial is how the guest finds its root disk: by the drive's serial number.
const RootSerial = "flexlvm-root"

func makeSparse(path string, size int64) error {
	if size <= 0 {
		return fmt.Errorf("size is %d: give a size or a path", size)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Close())
}

// makeInitrd appends the guest's files to the common initrd.
func (m *Machine) makeInitrd() error {
	m.initrd = m.config.images.Initrd
	if len(m.config.Files) == 0 {
		return nil
	}
	base, err := os.Open(m.initrd)
	if err != nil {
		return err
	}
	defer base.Close()
	m.initrd = filepath.Join(m.dir.Path, "initrd")
	f, err := os.Create(m.initrd)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(f, base); err != nil {
		return err
	}
	files := make(map[string]string, len(m.config.Files))
	for target, source := range m.config.Files {
		files["/files/"+target] = source
	}
	if err := writeArchive(f, files); err != nil {
		return err
	}
	return f.Close()
}

// Boot switches on a machine that is off.
func (m *Machine) Boot(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.process != nil {
		return errors.New("boot machine: it is running")
	}
	begun := time.Now()
	ours, theirs, err := socketPair()
	if err != nil {
		return fmt.Errorf("boot machine: %w", err)
	}
	process, err := m.qemu(theirs).Start(m.ctx)
	_ = theirs.Close() // or we would not notice that qemu's is closed
	if err != nil {
		_ = ours.Close()
		return fmt.Errorf("boot machine: %w", err)
	}
	m.process, m.port, m.guest = process, ours, newGuest(ours)
	go m.guest.listen()
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	select {
	case <-m.guest.ready:
		m.bootTime = time.Since(begun)
		return nil
	case <-m.guest.gone:
		err = m.guest.err
	case <-ctx.Done():
		err = ctx.Err()
	}
	err = fmt.Errorf("boot machine: %w", m.explain(err))
	m.switchOff()
	return err
}

func (m *Machine) qemu(port *os.File) Qemu {
	c := m.config
	args := []string{
		"console=ttyS0", "loglevel=5", "panic=-1", "oops=panic", "net.ifnames=0",
		"no_timer_check", // on a busy machine the emulated timer is late, and the kernel panics over it
		"random.trust_cpu=on", "mitigations=off",
	}
	if c.Root != "" {
		args = append(args, "flexlvm.root=rw")
	}
	if c.Udev {
		args = append(args, "flexlvm.udev=1")
	}
	return Qemu{
		Kernel: c.images.Kernel, Initrd: m.initrd, Append: append(args, c.KernelArgs...),
		Dir: m.dir.Path, Console: m.console(), Accel: c.accel, CPUs: c.CPUs, Memory: c.Memory,
		Drives: m.drives, NICs: c.NICs, Guest: port, NetNS: c.NetNS,
	}
}

func (m *Machine) console() string { return filepath.Join(m.dir.Path, "console.log") }

// explain adds to err what the machine's own logs say.
func (m *Machine) explain(err error) error {
	if cause := context.Cause(m.ctx); cause != nil {
		err = cause
	}
	return errors.Join(err,
		tailError("the guest's kernel said", m.console()),
		tailError("qemu said", filepath.Join(m.dir.Path, "qemu.log")))
}

// switchOff ends qemu; m.mu is held.
func (m *Machine) switchOff() {
	if m.process == nil {
		return
	}
	m.process.Kill()
	_ = m.port.Close()
	m.process = nil
}

// PowerCut ends the machine at once. Its disks stay for the next Boot.
func (m *Machine) PowerCut() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.switchOff()
}

// PowerOff lets the guest write back what it holds and switch itself off.
func (m *Machine) PowerOff() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.process == nil {
		return nil
	}
	err := m.guest.send(wire.Frame{Kind: wire.PowerOff})
	if err == nil {
		select {
		case <-m.process.Done():
		case <-time.After(powerOffLimit):
			err = fmt.Errorf("it has not within %s", powerOffLimit)
		}
	}
	if err != nil {
		err = fmt.Errorf("power off machine: %w", m.explain(err))
	}
	m.switchOff()
	return err
}

// Close ends the machine and removes its files.
func (m *Machine) Close() error {
	m.cancel()
	m.PowerCut()
	return m.dir.Remove()
}

// PID returns the process id of qemu, 0 while the machine is off.
func (m *Machine) PID() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.process == nil {
		return 0
	}
	return m.process.PID()
}

// BootTime returns how long the last boot took until commands could run.
func (m *Machine) BootTime() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bootTime
}

func socketPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make socket pair: %w", err)
	}
	ours := os.NewFile(uintptr(fds[0]), "guest port")
	defer ours.Close()
	theirs := os.NewFile(uintptr(fds[1]), "guest port of qemu")
	conn, err := net.FileConn(ours)
	if err != nil {
		_ = theirs.Close()
		return nil, nil, err
	}
	return conn, theirs, nil
}
