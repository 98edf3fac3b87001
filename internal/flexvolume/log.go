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

// DefaultLog is the driver's log file.
const DefaultLog = "/var/log/flexlvm/driver.log"

// Limits of the log: the file in use and the rotated ones.
const (
	maxLogSize = 10 << 20
	keptLogs   = 4
)

// openLog opens the log for appending, and first rotates it if it has grown too large. Many driver processes
// write at the same time: each appends whole lines to the file that it opened, and a process that still writes
// to a rotated file loses nothing.
//
// flexlvm rotates the log itself, because lumberjack is made for one process: it opens a new file without
// O_APPEND and truncates it, so two processes that rotate at the same time overwrite each other's lines.
// Linking lumberjack also costs 0.1 ms in every call.
func openLog(file string) (*os.File, error) {
	f, err := openAppend(file)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil || info.Size() < maxLogSize {
		return f, nil // without its size, the log can still be written
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

// rotate renames the log f and removes the oldest rotated logs. A lock on the file itself ensures that it is
// renamed only once: the next process that gets the lock finds another file under the name. Killed in between,
// rotate leaves one log too many, which the next rotation removes.
func rotate(f *os.File, file string) error {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil // another process is rotating it
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
	sort.Strings(old) // by time
	for ; len(old) > keptLogs; old = old[1:] {
		if err := os.Remove(old[0]); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return nil
}

// newLogger returns a logger that writes every line with a single write, so that lines of concurrent processes
// do not mix.
func newLogger(f *os.File) logrus.FieldLogger {
	log := logrus.New()
	log.SetOutput(plain{f})
	log.SetLevel(logrus.DebugLevel) // a call runs few programs, and operators need to see them
	log.SetFormatter(&inUTC{logrus.TextFormatter{DisableColors: true, FullTimestamp: true, TimestampFormat: "2006-01-02T15:04:05.000Z07:00"}})
	return log.WithField("pid", os.Getpid())
}

// plain hides that the writer is a file, so that logrus does not check whether it is a terminal.
type plain struct{ io.Writer }

// inUTC formats times in UTC, so that they can be compared between nodes and no time zone is read from disk.
type inUTC struct{ logrus.TextFormatter }

// Format implements logrus.Formatter.
func (f *inUTC) Format(e *logrus.Entry) ([]byte, error) {
	e.Time = e.Time.UTC()
	return f.TextFormatter.Format(e)
}
