// Command run boots a throw-away virtual machine, runs a command in it and exits with the command's exit code.
// Without a command it opens a shell.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/flexlvm/flexlvm/test/vm"
	"github.com/flexlvm/flexlvm/test/vm/wire"
)

// exitFailure is the exit code if the machine failed, not the command.
const exitFailure = 125

type options struct {
	disks     []string
	diskFiles []string
	files     []string
	env       []string
	udev      bool
	timeout   time.Duration
	memory    int
	cpus      int
	verbose   bool
}

func main() {
	endWithGoRun()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	var o options
	code := 0
	cmd := &cobra.Command{
		Use:   "run [flags] [-- command args…]",
		Short: "Run a command, or a shell, in a throw-away virtual machine with LVM and XFS",
		Example: `  run --disk 2G -- sh -c 'vgcreate flexlvm /dev/vda && vgs'
  run --disk 2G --udev`,
		SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			code, err = o.run(cmd.Context(), args)
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&o.disks, "disk", nil, "add a fresh disk of this size (2G, 500M); /dev/vda is the first")
	flags.StringArrayVar(&o.diskFiles, "disk-file", nil, "add a disk from this raw image, and keep what is written to it")
	flags.StringArrayVar(&o.files, "file", nil, "copy a file or folder into the machine, HOST:GUEST")
	flags.StringArrayVar(&o.env, "env", nil, "set an environment variable, NAME=VALUE")
	flags.BoolVar(&o.udev, "udev", false, "run udevd in the machine, and LVM with its defaults")
	flags.DurationVar(&o.timeout, "timeout", vm.DefaultTimeout, "the machine's longest life")
	flags.IntVar(&o.memory, "memory", vm.DefaultMemory, "memory in MiB")
	flags.IntVar(&o.cpus, "cpus", vm.DefaultCPUs, "number of processors")
	flags.BoolVarP(&o.verbose, "verbose", "v", false, "say how long the boot took")
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "run:", err)
		os.Exit(exitFailure)
	}
	os.Exit(code)
}

// endWithGoRun makes this process end when "go run" does, which forwards no signals.
func endWithGoRun() {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", os.Getppid()))
	if err == nil && strings.TrimSpace(string(name)) == "go" {
		_ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGTERM), 0, 0, 0)
	}
}

func (o options) config() (vm.Config, error) {
	c := vm.Config{
		Files: map[string]string{}, Udev: o.udev, Timeout: o.timeout,
		Memory: o.memory, CPUs: o.cpus, Progress: os.Stderr,
	}
	for _, size := range o.disks {
		q, err := resource.ParseQuantity(binaryUnit(size))
		if err != nil {
			return c, fmt.Errorf("parse --disk %s: %w", size, err)
		}
		c.Disks = append(c.Disks, vm.Disk{Size: q.Value()})
	}
	for _, file := range o.diskFiles {
		c.Disks = append(c.Disks, vm.Disk{Path: file})
	}
	for _, file := range o.files {
		host, guest, ok := strings.Cut(file, ":")
		if !ok || host == "" || guest == "" {
			return c, fmt.Errorf("parse --file %s: write HOST:GUEST", file)
		}
		c.Files[guest] = host
	}
	return c, nil
}

// binaryUnit makes 2G mean 2 GiB, as LVM does.
func binaryUnit(size string) string {
	if strings.HasSuffix(size, "K") || strings.HasSuffix(size, "M") || strings.HasSuffix(size, "G") || strings.HasSuffix(size, "T") {
		return size + "i"
	}
	return size
}

func (o options) run(ctx context.Context, args []string) (code int, err error) {
	config, err := o.config()
	if err != nil {
		return 0, err
	}
	command := vm.Command{Args: args, Env: o.env, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	shell := len(args) == 0
	if shell {
		if !term.IsTerminal(int(os.Stdin.Fd())) {
			return 0, errors.New("no command given, and no terminal for a shell; write run [flags] -- command")
		}
		command.Args = []string{"/bin/bash", "-l"}
	}
	m, err := vm.Start(ctx, config)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if o.verbose {
		fmt.Fprintf(os.Stderr, "run: booted in %s\n", m.BootTime().Round(time.Millisecond))
	}
	if shell {
		restore, err := useTerminal(ctx, &command)
		if err != nil {
			return 0, err
		}
		defer restore()
	}
	result, err := m.Exec(ctx, command)
	if err == nil && len(o.diskFiles) > 0 {
		err = m.PowerOff()
	}
	return result.ExitCode, err
}

// useTerminal gives the command a terminal with the behavior of this process's terminal.
func useTerminal(ctx context.Context, command *vm.Command) (restore func(), err error) {
	fd := int(os.Stdin.Fd())
	before, err := term.MakeRaw(fd)
	if err != nil {
		return nil, fmt.Errorf("set up terminal: %w", err)
	}
	size := func() wire.WindowSize {
		cols, rows, err := term.GetSize(fd)
		if err != nil {
			cols, rows = 80, 24
		}
		return wire.WindowSize{Rows: uint16(rows), Cols: uint16(cols)}
	}
	now := size()
	sizes := make(chan wire.WindowSize)
	command.TTY, command.Resize = &now, sizes
	if name := os.Getenv("TERM"); name != "" {
		command.Env = append(command.Env, "TERM="+name)
	}
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		for {
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
			select {
			case sizes <- size():
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() {
		cancel()
		signal.Stop(changed)
		_ = term.Restore(fd, before)
	}, nil
}
