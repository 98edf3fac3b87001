package flexvolume

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// DefaultLog is where the driver logs.
const DefaultLog = "/var/log/flexlvm/driver.log"

// How much log is kept: the file in use and its predecessors.
const (
	maxLogSize = 10 << 20
	keptLogs   = 4
)

// openLog opens the log for appending, and rotates it first where it has grown
// too large. Many driver processes write at once: each appends whole lines to
// what it has opened, and one that still writes to a rotated file loses nothing.
//
// Rotation is our own, because lumberjack is made for one process: it opens a
// new file without O_APPEND and truncates it, so two processes that meet there
// overwrite each other's lines; and linking it takes 0.1 ms of every call.
func openLog(file string) (*os.File, error) {
	f, err := openAppend(file)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil || info.Size() < maxLogSize {
		return f, nil // a log that cannot be measured can still be written to
	}
	if err := rotate(f, file); err != nil {
		_, _ = fmt.Fprintf(f, "time=%q level=warning msg=\"cannot rotate this log\" error=%q\n", time.Now().UTC().Format(time.RFC3339), err)
		return f, nil
	}
	_ = f.Close()
	return openAppend(file)
}

func openAppend(file string) (*os.File, error) {
	const flags = os.O_WRONLY | os.O_APPEND | os.O_CREATE | unix.O_NOFOLLOW
	f, err := os.OpenFile(file, flags, 0o640)
	if !os.IsNotExist(err) {
		return f, err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
		return nil, err
	}
	return os.OpenFile(file, flags, 0o640)
}

// rotate renames the log f, and removes the oldest of those renamed before. A lock on the file itself
// makes sure that it is renamed once: the next process to get the lock finds another file under the
// name. If rotate is killed in between, it leaves one log too many, which the next rotation removes.
func rotate(f *os.File, file string) error {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil // somebody else is at it
	}
	var mine, named unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &mine); err != nil {
		return err
	}
	if err := unix.Lstat(file, &named); err != nil || mine.Ino != named.Ino || mine.Dev != named.Dev {
		return nil
	}
	ext := filepath.Ext(file)
	stem := file[:len(file)-len(ext)] + "-"
	if err := os.Rename(file, stem+time.Now().UTC().Format("20060102T150405.000000000")+ext); err != nil {
		return err
	}
	old, err := filepath.Glob(stem + "*" + ext)
	if err != nil {
		return err
	}
	sort.Strings(old) // by their times
	for ; len(old) > keptLogs; old = old[1:] {
		if err := os.Remove(old[0]); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return nil
}

// newLogger writes every line with one write, so that lines of processes that
// log at once do not mix.
func newLogger(f *os.File) logrus.FieldLogger {
	log := logrus.New()
	log.SetOutput(plain{f})
	log.SetLevel(logrus.DebugLevel) // a call runs few programs; an operator wants to see them
	log.SetFormatter(&inUTC{logrus.TextFormatter{DisableColors: true, FullTimestamp: true, TimestampFormat: "2006-01-02T15:04:05.000Z07:00"}})
	return log.WithField("pid", os.Getpid())
}

// plain hides that it is a file, which logrus would ask whether it is a terminal.
type plain struct{ io.Writer }

// inUTC gives times that can be compared between nodes, and reads no time zone
// from disk.
type inUTC struct{ logrus.TextFormatter }

// Format implements logrus.Formatter.
func (f *inUTC) Format(e *logrus.Entry) ([]byte, error) {
	e.Time = e.Time.UTC()
	return f.TextFormatter.Format(e)
}
