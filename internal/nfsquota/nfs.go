package nfsquota

import (
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/flexlvm/flexlvm/internal/mount"
)

// onNFS reports whether a directory lies on a file system of another server, as on nodes that are its
// clients. It uses the table of mounts: accessing the directory would hang while the server does not
// respond.
func onNFS(points []mount.Point, dir string) (bool, error) {
	at, links := "/", 0
	for rest := dir; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(strings.TrimLeft(rest, "/"), "/")
		next := path.Join(at, name)
		if strings.HasPrefix(typeAt(points, next), "nfs") {
			return true, nil
		}
		target, err := os.Readlink(next)
		if err != nil { // next is no link, or does not exist
			at = next
			continue
		}
		if links++; links > 40 { // the kernel's limit
			return false, fmt.Errorf("%s leads through too many links", dir)
		}
		if path.IsAbs(target) {
			at = "/"
		}
		rest = target + "/" + rest
	}
	return false, nil
}

// typeAt returns the type of the file system that contains a path without links.
func typeAt(points []mount.Point, p string) (fsType string) {
	longest := 0
	for _, m := range points {
		below := strings.TrimSuffix(m.Path, "/") + "/"
		if strings.HasPrefix(p+"/", below) && len(below) >= longest { // of several mounts at one path, the last is on top
			longest, fsType = len(below), m.Type
		}
	}
	return fsType
}
