package command

import (
	"errors"
	"os"
	"sync/atomic"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
	"k8s.io/utils/exec"
)

// group is the control group in which programs are started.
type group struct {
	dir    *os.File
	failed atomic.Bool
}

// In returns run with its programs started in a control group (cgroup v2): they then use the CPU share
// and the memory limit of that group, not those of this process. dir is the group's directory and must
// stay open. If the kernel refuses (before Linux 5.7, for example), this is logged once, and programs
// run in the group of this process. So does a single program for which the group is short of memory or
// processes at that moment.
func In(run exec.Interface, dir *os.File) exec.Interface {
	r, ours := run.(*runner)
	if !ours {
		return run
	}
	in := *r
	in.group = &group{dir: dir}
	return &in
}

func (g *group) fd() (fd int, is bool) {
	if g == nil || g.failed.Load() {
		return 0, false
	}
	return int(g.dir.Fd()), true
}

// refused records that a program started outside the group but not in it, so that no further program is
// started in it. A shortage of memory or processes is temporary, and does not count.
func (g *group) refused(log logrus.FieldLogger, err error) {
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOMEM) {
		return
	}
	if !g.failed.Swap(true) {
		log.WithError(err).WithField("group", g.dir.Name()).Warn("the host's programs cannot be started in a control group of their own, and run in this process's")
	}
}
