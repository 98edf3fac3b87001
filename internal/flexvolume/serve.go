package flexvolume

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// Config is what a driver process needs.
type Config struct {
	LogFile string // DefaultLog if empty
	// Engine makes the engine, for calls that need one.
	Engine func(logrus.FieldLogger) (Engine, error)
}

// Serve answers the call in args (at least one, without the program's name): exactly one
// line on stdout, nothing on stderr. It returns the exit code. The process can do nothing
// else afterwards: its stdout and stderr now go to the log.
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
		return 1 // nobody is left to be told
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

// setAside returns a copy of stdout that no child process inherits, so that what
// is redirected afterwards does not touch it.
func setAside(stdout *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(stdout.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("set stdout aside: %w", err)
	}
	return os.NewFile(uintptr(fd), "stdout"), nil
}

// redirect points stdout and stderr at the log, so that nothing a library, the
// Go runtime or a child prints can spoil the reply. A log that cannot be opened
// fails no call: all goes to /dev/null then.
func redirect(logFile string) *os.File {
	if logFile == "" {
		logFile = DefaultLog
	}
	f, err := openLog(logFile)
	if err != nil {
		f, err = os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	}
	if err != nil {
		f = nowhere()
	}
	for _, fd := range []int{1, 2} {
		_ = unix.Dup3(int(f.Fd()), fd, 0)
	}
	return f
}

// nowhere is memory that goes with the process, for a root directory without
// /dev/null.
func nowhere() *os.File {
	fd, err := unix.MemfdCreate("log", unix.MFD_CLOEXEC)
	if err != nil {
		return os.Stdin // not open for writing, so nothing comes of it
	}
	return os.NewFile(uintptr(fd), "log")
}
