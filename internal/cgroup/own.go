package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/flexlvm/flexlvm/internal/command"
)

// HostPrograms is the group below the root in which the node daemon and the drivers run LVM. It is a sibling of the
// groups of kubelet and of the host's services, with the default weight and no memory limit.
const HostPrograms = "flexlvm"

// OpenOrCreate opens the directory of a group below the root, and creates the group if necessary. The
// caller closes the directory. The error is ErrVersion if the host has no cgroup v2.
func (t *Tree) OpenOrCreate(name string) (*os.File, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	path := filepath.Join(t.root, name)
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("create control group: %w", err)
	}
	dir, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open control group: %w", err)
	}
	return dir, nil
}

// InHostGroup returns host with its programs started in the group HostPrograms, which has to stay open until release
// is called. If there can be no such group, it returns host unchanged and the reason.
func (t *Tree) InHostGroup(host command.Programs) (in command.Programs, release func(), err error) {
	group, err := t.OpenOrCreate(HostPrograms)
	if err != nil {
		return host, func() {}, err
	}
	in = command.Programs{Unkillable: command.In(host.Unkillable, group), Killable: command.In(host.Killable, group)}
	return in, func() { _ = group.Close() }, nil
}
