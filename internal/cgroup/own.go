package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// HostPrograms is the group that the node daemon runs LVM in, below the root: beside those
// of kubelet and of the host's services, with the weight that every group has by default and
// no limit of memory.
const HostPrograms = "flexlvm"

// Own returns the directory of a group below the root, which it makes where it is not there.
// The caller closes it. The error is ErrVersion where the host has no cgroup v2.
func (t *Tree) Own(name string) (*os.File, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	path := filepath.Join(t.root, name)
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make control group: %w", err)
	}
	dir, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open control group: %w", err)
	}
	return dir, nil
}
