package flexvolume

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// Config configures a driver process.
type Config struct {
	LogFile string // DefaultLog if empty
	// Engine creates the engine, for calls that need it.
	Engine func(logrus.FieldLogger) (Engine, error)
}

// Serve handles the call in args (at least one, without the program's name): it writes exactly one line to
// stdout, nothing to stderr, and returns the exit code. The process cannot do anything else afterwards, because
// its stdout and stderr now go to the log.
func Serve(cfg Config, args []string) (exitCode int) {
	if len(args) == 1 && args[0] == verbInit {
		_, _ = os.Stdout.WriteString(initReply)
		return 0
	}
	stdout, err := setAside(os.Stdout)
	if err != nil {
		_, _ = os.Stdout.Write(failure(err).Line())
		return 1
	}
	reply := serve(cfg, args)
	if _, err := stdout.Write(reply.Line()); err != nil {
		return 1 // kubelet no longer reads
	}
	return reply.ExitCode()
}

func serve(cfg Config, args []string) (reply Reply) {
	file := redirect(cfg.LogFile)
	log := newLogger(file)
	defer func() {
		if p := recover(); p != nil {
			log.Errorf("panic: %v\n%s", p, debug.Stack())
			reply = failure(errPanic)
		}
	}()
	c, ok, err := parseCall(args)
	switch {
	case !ok:
		return notSupported
	case err != nil:
		log.WithError(err).WithField("verb", c.verb).Error("call refused")
		return failure(fmt.Errorf("read the call: %w", err))
	}
	engine, err := cfg.Engine(log)
	if err != nil {
		log.WithError(err).WithField("verb", c.verb).Error("call failed")
		return failure(err)
	}
	return handler{engine: engine, log: log, grace: grace}.answer(context.Background(), c)
}

// setAside returns a duplicate of stdout that the later redirection does not affect and that no child process
// inherits.
func setAside(stdout *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(stdout.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("set stdout aside: %w", err)
	}
	return os.NewFile(uintptr(fd), "stdout"), nil
}

// redirect redirects stdout and stderr to the log, so that output of a library, the Go runtime or a child
// process cannot corrupt the reply. If the log cannot be opened, calls do not fail: everything goes to
// /dev/null.
func redirect(logFile string) *os.File {
	if logFile == "" {
		logFile = DefaultLog
	}
	f, err := openLog(logFile)
	if err != nil {
		f, err = os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	}
	if err != nil {
		f = memFile()
	}
	for _, fd := range []int{1, 2} {
		_ = unix.Dup3(int(f.Fd()), fd, 0)
	}
	return f
}

// memFile returns a file in memory that ends with the process, for a root directory without /dev/null.
func memFile() *os.File {
	fd, err := unix.MemfdCreate("log", unix.MFD_CLOEXEC)
	if err != nil {
		return os.Stdin // not open for writing, so output is lost
	}
	return os.NewFile(uintptr(fd), "log")
}
