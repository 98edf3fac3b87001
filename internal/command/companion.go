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

// A Companion is this program, started a second time for work that has to be done even if this process
// is killed.
type Companion struct {
	process *osexec.Cmd
	// lifeline is the write end of the companion's input, which closes when this process ends, however
	// it ends.
	lifeline *os.File
}

// Accompany starts this program a second time, with this text in its environment ("NAME=value") and
// with files as its descriptors from 3 on. The companion is in the control group of run, if it has one,
// so that it survives the end of a container. Accompany returns once the companion has written a line
// to its output, which reports that it is ready.
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

// startCompanion starts the companion in the control group of run, or in that of this process if there
// is none or the kernel refuses.
func startCompanion(run exec.Interface, variable string, input, output *os.File, files []*os.File) (*osexec.Cmd, error) {
	process := func() *osexec.Cmd {
		return &osexec.Cmd{
			Path:  "/proc/self/exe", // also if the file was replaced meanwhile
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

// End closes the companion's input and waits until the companion has ended. If done is true, it writes
// a byte first, which reports that the companion's work is done: a killed process never writes it.
func (c *Companion) End(done bool) error {
	var writeErr error
	if done {
		_, writeErr = c.lifeline.Write([]byte{'.'})
	}
	return errors.Join(writeErr, c.lifeline.Close(), c.process.Wait())
}
