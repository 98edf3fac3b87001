package command

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// maxLeft is how many processes of one command line may hang. While a disk hangs, LVM hangs, too, and
// each retry would add an unkillable process to the node.
const maxLeft = 3

// left holds the child processes that did not end after their signal, by their command lines. Only the
// command line that hangs is not started again: other commands may use healthy disks. It does not limit
// the FlexVolume driver, each of whose calls is a process of its own (docs/decisions/008).
type left struct {
	mu sync.Mutex
	of map[string][]leftProcess
}

type leftProcess struct {
	pid   int
	begun time.Time
}

// refuse fails if too many processes of a command line hang.
func (l *left) refuse(command string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.of[command]
	if len(all) < maxLeft {
		return nil
	}
	return fmt.Errorf("%d earlier processes of this command have not ended after SIGTERM or SIGKILL (process %d since %s), so it is not started again: see the kernel's log (dmesg) for a disk that hangs; if the same command works on the node by now, restart this program",
		len(all), all[0].pid, all[0].begun.UTC().Format(time.RFC3339))
}

// add records a process, until ended is called.
func (l *left) add(command string, p leftProcess) (ended func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of[command] = append(l.of[command], p)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.of[command] = slices.DeleteFunc(l.of[command], func(other leftProcess) bool { return other == p })
		if len(l.of[command]) == 0 {
			delete(l.of, command)
		}
	}
}

// leave stops waiting for the program, and logs its end.
func (c *cmd) leave(pid int, ended <-chan error) {
	noteEnd := c.left.add(c.String(), leftProcess{pid, c.begun})
	go func() {
		err := <-ended
		noteEnd()
		c.log.WithField("pid", pid).WithError(err).Info(c.String() + " has ended, which had been left to finish")
	}()
}
