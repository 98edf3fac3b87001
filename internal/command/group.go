package command

import (
	"os"
	"sync/atomic"

	"github.com/sirupsen/logrus"
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
// example), it is said once in the log, and programs run in the group of this process.
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

// refused notes that no program can be started in the group.
func (g *group) refused(log logrus.FieldLogger, err error) {
	if !g.failed.Swap(true) {
		log.WithError(err).WithField("group", g.dir.Name()).Warn("the host's programs cannot be started in a control group of their own, and run in this process's")
	}
}
