// Package command runs the host's programs. Nothing else in flexlvm does.
//
// Callers use k8s.io/utils/exec. The implementation keeps data safe by these rules: a program prints to
// a file in memory and not to a pipe, so that an LVM command that outlives this process never dies of
// SIGPIPE between two writes of metadata; some programs are never killed; every program has a deadline
// and a bounded output. docs/decisions/008-own-runner-behind-utils-exec.md has the reasons.
package command

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
	"k8s.io/utils/exec"
)

// Programs are the programs of this host. No shell is ever involved. The error of a command is an
// [exec.ExitError] if the program ran and failed, [exec.ErrExecutableNotFound] if the host does not
// have it, or wraps the context's error.
type Programs struct {
	// Unkillable runs programs that are never killed: at the context's deadline, but after two minutes at
	// the latest, they receive SIGTERM, and are left to finish. An LVM command killed between suspend and
	// resume would leave a device that hangs.
	Unkillable exec.Interface
	// Killable runs programs that may be killed at any instant without loss, such as mkfs on a volume
	// in state creating: they die with this process and at the context's deadline, or after two minutes if
	// the context has none.
	Killable exec.Interface
}

// An Observer is called after each command. err is nil for exit code 0.
type Observer func(program string, took time.Duration, err error)

// DefaultPath is where the host's tools are. The kubelet's own PATH often lacks sbin.
const DefaultPath = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin:/run/current-system/sw/bin"

const (
	// defaultDeadline bounds the wait for programs that must not be killed, and killable programs without a
	// deadline.
	defaultDeadline = 2 * time.Minute
	// killGracePeriod is how long a program may take to end after its signal, before it is left alone and
	// reported.
	killGracePeriod = 5 * time.Second
	// maxOutput is far above a full report of 10,000 volumes.
	maxOutput = 64 << 20
)

// New returns the programs found in path (DefaultPath if empty), never in the working directory. Each
// command is logged to log.
func New(path string, log logrus.FieldLogger, observers ...Observer) Programs {
	if path == "" {
		path = DefaultPath
	}
	r := runner{path: path, log: log, observers: observers, deadline: defaultDeadline, killGracePeriod: killGracePeriod, maxOutput: maxOutput, left: &left{of: map[string][]leftProcess{}}}
	killable := r
	killable.killable = true
	return Programs{Unkillable: &r, Killable: &killable}
}

// Missing returns the programs that run does not find.
func Missing(run exec.Interface, programs ...string) (missing []string) {
	for _, name := range programs {
		if _, err := run.LookPath(name); err != nil {
			missing = append(missing, name)
		}
	}
	return missing
}

// runner implements exec.Interface.
type runner struct {
	path            string
	log             logrus.FieldLogger
	observers       []Observer
	killable        bool
	deadline        time.Duration // see cmd.bounded
	killGracePeriod time.Duration
	maxOutput       int64 // bytes of each stream
	left            *left
	group           *group // nil: the control group of this process
}

// Command implements exec.Interface.
func (r *runner) Command(name string, args ...string) exec.Cmd {
	return r.CommandContext(context.Background(), name, args...)
}

// CommandContext implements exec.Interface. The end of ctx kills only programs of Killable.
func (r *runner) CommandContext(ctx context.Context, name string, args ...string) exec.Cmd {
	return &cmd{runner: r, ctx: ctx, argv: append([]string{name}, args...), env: r.environment(), dir: "/"}
}

// LookPath implements exec.Interface.
func (r *runner) LookPath(name string) (string, error) {
	for _, dir := range filepath.SplitList(r.path) {
		file := filepath.Join(dir, name)
		if unix.Access(file, unix.X_OK) == nil {
			return file, nil
		}
	}
	return "", missingError{name: name, path: r.path}
}

// environment returns a fixed environment: messages and numbers in the C locale, and no warnings about
// descriptors that the caller left open.
func (r *runner) environment() []string {
	return []string{"PATH=" + r.path, "LC_ALL=C", "HOME=/", "LVM_SUPPRESS_FD_WARNINGS=1"}
}

func (r *runner) report(argv []string, took time.Duration, err error) {
	line := r.log.WithField("took", took.Round(time.Millisecond))
	if err != nil {
		line = line.WithField("failed", true)
	}
	line.Debug(strings.Join(argv, " "))
	for _, observe := range r.observers {
		observe(argv[0], took, err)
	}
}

// exitError reports that a program ran and failed. It implements exec.ExitError.
type exitError struct {
	command string
	code    int // -1 if a signal ended it
	printed string
}

func (e exitError) Error() string {
	reason := strings.Join(strings.Fields(e.printed), " ")
	if reason == "" {
		reason = "it printed no reason"
	}
	return fmt.Sprintf("run %s: exit code %d: %s", e.command, e.code, reason)
}

func (e exitError) String() string  { return e.Error() }
func (e exitError) Exited() bool    { return e.code >= 0 }
func (e exitError) ExitStatus() int { return e.code }

// missingError reports that a program is not on this host.
type missingError struct{ name, path string }

func (e missingError) Error() string {
	return fmt.Sprintf("%s is not on this host (looked in %s); install the package that holds it (%s)", e.name, e.path, packageOf(e.name))
}

func (e missingError) Unwrap() error { return exec.ErrExecutableNotFound }

// packageOf returns the package that the operator has to install. The names are the same in Debian,
// Fedora and SUSE.
func packageOf(program string) string {
	if strings.HasPrefix(program, "mkfs.xfs") || strings.HasPrefix(program, "xfs_") {
		return "xfsprogs"
	}
	switch program {
	case "wipefs", "blkid", "lsblk":
		return "util-linux"
	case "mke2fs", "tune2fs":
		return "e2fsprogs"
	case "cryptsetup":
		return "cryptsetup, or cryptsetup-bin"
	}
	return "lvm2"
}
