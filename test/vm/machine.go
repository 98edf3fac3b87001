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

	"github.com/flexlvm/flexlvm/test/vm/wire"
)

// Limits, and defaults of a Config.
const (
	DefaultTimeout = 10 * time.Minute
	DefaultMemory  = 1024 // MiB
	DefaultCPUs    = 2

	bootLimit     = 2 * time.Minute
	powerOffLimit = 3 * time.Minute
)

// Disk is a disk of a guest.
type Disk struct {
	// Size in bytes of a new, sparse disk that is removed with the machine.
	Size int64
	// Path of a raw image to use instead, which is kept.
	Path string
	// Serial is the content of /sys/block/vdX/serial in the guest.
	Serial string
	// Unsafe ignores flushes.
	Unsafe bool
}

// Config describes a machine. The zero value is a usable guest without disks.
type Config struct {
	Disks []Disk
	// Files are copied into the guest at every boot, before any program runs, as a map of paths in the guest to
	// files or folders on this machine.
	Files map[string]string
	// Udev starts systemd-udevd, so that LVM runs with its defaults. Without it, LVM is configured to create its
	// device nodes itself, and the boot is faster.
	Udev bool
	// Root is a file that keeps the changes to the root file system across boots, instead of the usual throw-away
	// layer in memory. A missing file is created.
	Root   string
	Memory int // MiB
	// CPUs is the number of processors. User-Mode Linux always has one.
	CPUs       int
	KernelArgs []string
	// Timeout bounds the machine's life.
	Timeout time.Duration
	// Progress receives reports of long steps; os.Stderr if nil.
	Progress io.Writer

	backend Backend
}

// Machine is a virtual machine.
type Machine struct {
	config Config
	dir    *RunDir
	link   *link
	drives []Drive
	initrd string
	ctx    context.Context // the machine's lifetime
	cancel context.CancelFunc

	mu       sync.Mutex
	process  *Process // nil while switched off
	guest    *guest
	bootTime time.Duration
}

// Start boots a machine and returns when it is ready for Exec. The machine runs until Close, the end of ctx, or
// Config.Timeout.
func Start(ctx context.Context, c Config) (*Machine, error) {
	if c.Progress == nil {
		c.Progress = os.Stderr
	}
	var err error
	if c.backend, err = FindBackend(ctx, c.Progress); err != nil {
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

// prepare creates the files of a machine.
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
	if m.link, err = newLink(); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	if err := errors.Join(m.makeDrives(ctx), m.makeInitrd()); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func (m *Machine) makeDrives(ctx context.Context) error {
	for i, d := range m.config.Disks {
		path := filepath.Join(m.dir.Path, fmt.Sprintf("disk%d", i))
		if err := makeDisk(path, d); err != nil {
			return fmt.Errorf("make disk %d: %w", i, err)
		}
		m.drives = append(m.drives, Drive{Path: path, Unsafe: d.Unsafe, Serial: d.Serial})
	}
	root := Drive{Path: m.config.backend.NodeDisk, ReadOnly: true, Serial: RootSerial}
	if m.config.Root != "" {
		root = Drive{Path: m.config.Root, Base: m.config.backend.NodeDisk, Serial: RootSerial}
		if _, err := os.Stat(root.Path); errors.Is(err, os.ErrNotExist) {
			if err := m.config.backend.CreateOverlay(ctx, root.Path, root.Base); err != nil {
				return err
			}
		}
	}
	m.drives = append(m.drives, root)
	return nil
}

// makeDisk creates a new disk, or a link to the caller's disk, whose path may contain characters that a backend
// cannot parse.
func makeDisk(path string, d Disk) error {
	if d.Path == "" {
		return makeSparse(path, d.Size)
	}
	target, err := filepath.Abs(d.Path)
	if err != nil {
		return err
	}
	if _, err := os.Stat(target); err != nil {
		return err
	}
	return os.Symlink(target, path)
}

// RootSerial is the serial number by which the guest finds its root disk.
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
	m.initrd = m.config.backend.Initrd
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

// Boot boots a machine that is powered off.
func (m *Machine) Boot(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.process != nil {
		return errors.New("boot machine: it is running")
	}
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	listener, err := m.link.listen(ctx)
	if err != nil {
		return fmt.Errorf("boot machine: %w", err)
	}
	defer listener.Close()
	program, err := m.config.backend.Program(m.hardware(listener.Addr().(*net.TCPAddr).Port))
	if err != nil {
		return fmt.Errorf("boot machine: %w", err)
	}
	if m.process, err = startProgram(m.ctx, program, m.dir.Path, m.link.path()); err != nil {
		return fmt.Errorf("boot machine: %w", err)
	}
	if err := m.meet(ctx, listener); err != nil {
		err = fmt.Errorf("boot machine: %w", m.explain(err, m.process))
		m.switchOff()
		return err
	}
	m.bootTime = time.Since(begun)
	return nil
}

// meet waits until the guest has connected and is ready for commands.
func (m *Machine) meet(ctx context.Context, listener *net.TCPListener) error {
	process := m.process
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-process.Done():
			cancel(errGuestGone)
		case <-ctx.Done():
		}
	}()
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	for {
		port, err := listener.Accept()
		if err != nil {
			return context.Cause(ctx)
		}
		m.guest = newGuest(port)
		go func() { // a machine that ends does not close the connection
			<-process.Done()
			_ = port.Close()
		}()
		go m.guest.listen()
		select {
		case <-m.guest.ready:
			return nil
		case <-m.guest.gone:
			if !errors.Is(m.guest.err, errGuestGone) || process.how() != nil {
				return m.guest.err
			}
			_ = port.Close() // a guest on a busy machine may have given up; it connects again
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (m *Machine) hardware(port int) Hardware {
	c := m.config
	args := []string{"loglevel=5", "panic=-1", "oops=panic", fmt.Sprintf("%s=%d", wire.ControlArg, port)}
	if c.Root != "" {
		args = append(args, "flexlvm.root=rw")
	}
	if c.Udev {
		args = append(args, "flexlvm.udev=1")
	}
	return Hardware{
		Initrd: m.initrd, Append: append(args, c.KernelArgs...),
		Dir: m.dir.Path, Console: m.console(), CPUs: c.CPUs, Memory: c.Memory,
		Drives: m.drives, NICs: []NIC{{Tap: linkTap, MAC: "52:54:00:88:00:01"}},
	}
}

func (m *Machine) console() string { return filepath.Join(m.dir.Path, "console.log") }

// explain adds the machine's logs to err.
func (m *Machine) explain(err error, p *Process) error {
	if cause := context.Cause(m.ctx); cause != nil {
		err = cause
	}
	var end error
	if p != nil {
		end = p.how()
	}
	return errors.Join(err, end,
		tailError("the guest's kernel said", m.console()),
		tailError("the machine said", filepath.Join(m.dir.Path, backendLog)))
}

// switchOff kills the machine; m.mu is held.
func (m *Machine) switchOff() {
	if m.process == nil {
		return
	}
	m.process.Kill()
	m.process = nil
}

// PowerCut kills the machine. Its disks are kept for the next Boot.
func (m *Machine) PowerCut() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.switchOff()
}

// PowerOff has the guest sync its file systems and power itself off.
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
		err = fmt.Errorf("power off machine: %w", m.explain(err, m.process))
	}
	m.switchOff()
	return err
}

// Close kills the machine and removes its files.
func (m *Machine) Close() error {
	m.cancel()
	m.PowerCut()
	var err error
	if m.link != nil {
		err = m.link.close()
	}
	return errors.Join(err, m.dir.Remove())
}

// PID returns the process ID of the machine, or 0 while the machine is off.
func (m *Machine) PID() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.process == nil {
		return 0
	}
	return m.process.PID()
}

// BootTime returns how long the last boot took until the guest was ready for commands.
func (m *Machine) BootTime() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bootTime
}
