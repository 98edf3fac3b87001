package nfsquota

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/quota"
)

// quotas are the project quotas of a file system.
type quotas interface {
	// projects returns the projects that have limits or any usage.
	projects() (map[quota.Project]quota.Usage, error)
	set(p quota.Project, l quota.Limit) error
	projectOf(dir *os.File) (quota.Project, error)
	// assign sets the project of a directory, which new entries in it inherit.
	assign(dir *os.File, p quota.Project) error
}

// errElsewhere means that an export lies on another machine, and is only mounted here.
var errElsewhere = errors.New("it is mounted from another server")

// xfs is the device of a mounted XFS.
type xfs string

// openXFS fails unless root lies on an XFS that enforces project quota.
func openXFS(root *os.Root) (quotas, error) {
	dir, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	var fs unix.Statfs_t
	var st unix.Stat_t
	if err := unix.Fstatfs(int(dir.Fd()), &fs); err != nil {
		return nil, fmt.Errorf("check the file system: %w", err)
	}
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return nil, fmt.Errorf("check the directory: %w", err)
	}
	if fs.Type == unix.NFS_SUPER_MAGIC {
		return nil, errElsewhere
	}
	if fs.Type != unix.XFS_SUPER_MAGIC {
		return nil, errors.New("its file system is not XFS, on which flexlvm sets quotas; export a directory of one that is mounted with the option prjquota")
	}
	mounts, err := mount.ByDevice()
	if err != nil {
		return nil, err
	}
	var sources []string
	for _, at := range mounts[st.Dev] {
		sources = append(sources, at.Source)
	}
	device, err := nodeOf(st.Dev, append(sources, fmt.Sprintf("/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))))
	if err != nil {
		return nil, err
	}
	enforced, err := quota.Enforced(device)
	if err != nil {
		return nil, err
	}
	if !enforced {
		return nil, fmt.Errorf("its XFS on %s is mounted without project quota; unmount it and mount it with the option prjquota (the root file system: boot with rootflags=prjquota)", device)
	}
	return xfs(device), nil
}

// nodeOf returns the first of these names that is a node of the device: a mount's source may now name
// another device, or may never have named one, such as /dev/root.
func nodeOf(device uint64, names []string) (string, error) {
	for _, name := range names {
		var st unix.Stat_t
		if unix.Stat(name, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK && st.Rdev == device {
			return name, nil
		}
	}
	return "", fmt.Errorf("none of %q is a node of device %d:%d, on which it lies", names, unix.Major(device), unix.Minor(device))
}

func (x xfs) projects() (map[quota.Project]quota.Usage, error) { return quota.Projects(string(x)) }
func (x xfs) set(p quota.Project, l quota.Limit) error         { return quota.SetOf(string(x), p, l) }
func (x xfs) projectOf(dir *os.File) (quota.Project, error)    { return quota.ProjectOf(dir) }
func (x xfs) assign(dir *os.File, p quota.Project) error       { return quota.EnsureProjectOf(dir, p) }
