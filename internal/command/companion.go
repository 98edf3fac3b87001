package command

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"syscall"

	"k8s.io/utils/exec"
)

// A Companion is this program, started once more for what has to be done even if this process
// is killed.
type Companion struct {
	process *osexec.Cmd
	// lifeline is what its input is the other end of: it ends with this process, however that
	// ends.
	lifeline *os.File
}

// Accompany starts this program once more, with this text in its environment ("NAME=value") and
// with files as its descriptors from 3 on. It is in the control group of run, where that has one:
// what ends a container does not end it. Accompany returns once it has written a line to its
// output, by which it says that it is at work.
func Accompany(run exec.Interface, variable string, files []*os.File) (*Companion, error) {
	input, lifeline, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start this program beside itself: %w", err)
	}
	said, output, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start this program beside itself: %w", err), input.Close(), lifeline.Close())
	}
	defer func() { _ = said.Close() }()
	process, err := startCompanion(run, variable, input, output, files)
	if err := errors.Join(err, input.Close(), output.Close()); err != nil {
		return nil, errors.Join(fmt.Errorf("start this program beside itself: %w", err), lifeline.Close())
	}
	c := &Companion{process: process, lifeline: lifeline}
	if _, err := bufio.NewReader(said).ReadString('\n'); err != nil {
		return nil, errors.Join(fmt.Errorf("start this program beside itself: it ended at once: %w", err), c.End(false))
	}
	return c, nil
}

// startCompanion starts it in the control group of run, or in that of this process where there is
// none or the kernel refuses.
func startCompanion(run exec.Interface, variable string, input, output *os.File, files []*os.File) (*osexec.Cmd, error) {
	process := func() *osexec.Cmd {
		return &osexec.Cmd{
			Path:  "/proc/self/exe", // also where the file was replaced meanwhile
			Args:  os.Args[:1],
			Env:   []string{variable},
			Dir:   "/",
			Stdin: input, Stdout: output,
			ExtraFiles:  files,
			SysProcAttr: &syscall.SysProcAttr{Setsid: true},
		}
	}
	if r, ours := run.(*runner); ours {
		if group, is := r.group.fd(); is {
			p := process()
			p.SysProcAttr.UseCgroupFD, p.SysProcAttr.CgroupFD = true, group
			if err := p.Start(); err == nil {
				return p, nil
			}
		}
	}
	p := process()
	return p, p.Start()
}

// End ends its input and waits until it has ended, too. If all is done that it is there for, there is
// a byte before the end, which never comes from a process that was killed.
func (c *Companion) End(done bool) error {
	var told error
	if done {
		_, told = c.lifeline.Write([]byte{'.'})
	}
	return errors.Join(told, c.lifeline.Close(), c.process.Wait())
}
