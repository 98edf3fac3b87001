package discovery

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/mountinfo"
)

// maxLinks is the kernel's limit of symbolic links in a path.
const maxLinks = 40

// resolve is filepath.EvalSymlinks for an absolute path, except that it accesses no file system that
// may depend on a server or a process, because a call on one that does not answer would never return.
// It returns a remoteError instead. The host's root counts as local whatever its file system.
func resolve(mounts []*mountinfo.Info, path string) (string, error) {
	at, links := "/", 0
	for left := componentsOf(path); len(left) > 0; {
		next := filepath.Join(at, left[0])
		left = left[1:]
		if on := mountOf(mounts, next); on != nil && on.Mountpoint != "/" && remote(on.FSType) {
			return "", remoteError{path: next, kind: on.FSType}
		}
		info, err := os.Lstat(next)
		if err != nil {
			return "", err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return "", &os.PathError{Op: "resolve", Path: path, Err: unix.ELOOP}
		}
		target, err := os.Readlink(next)
		if err != nil {
			return "", err
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		left = append(componentsOf(target), left...)
	}
	return at, nil
}

// componentsOf returns the components of a path. It keeps "..", because the component before it may be
// a link.
func componentsOf(path string) []string {
	return slices.DeleteFunc(strings.Split(path, "/"), func(c string) bool { return c == "" || c == "." })
}

// A remoteError reports a path on a file system that may depend on a server or a process.
type remoteError struct{ path, kind string }

func (e remoteError) Error() string {
	return fmt.Sprintf("%s is on a file system of kind %s, which may depend on a server or a process", e.path, e.kind)
}
