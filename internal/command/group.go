package command

import (
	"errors"
	"os"
	"sync/atomic"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
	"k8s.io/utils/exec"
)

// group is the control group that programs are started in.
type group struct {
	dir    *os.File
	failed atomic.Bool
}

// In returns run with its programs started in a control group (cgroup v2): its share of the
// processor and its limit of memory are theirs then, and not those of this process. dir is
// the group's directory and must stay open. Where the kernel refuses (before Linux 5.7, for
// example), it is said once in the log, and programs run in the group of this process. So
// does a single one for which memory or processes are short in the group just then.
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

// refused notes that a program which starts without the group did not start in it, so that
// none is started in it again. A shortage of memory or of processes passes, and is no reason.
func (g *group) refused(log logrus.FieldLogger, err error) {
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOMEM) {
		return
	}
	if !g.failed.Swap(true) {
		log.WithError(err).WithField("group", g.dir.Name()).Warn("the host's programs cannot be started in a control group of their own, and run in this process's")
	}
}
