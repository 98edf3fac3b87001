// Package nfsmark reads and writes the marks that flexlvm keeps in the export of an NFS server beside
// the directories of volumes: they record which directories are flexlvm's. The NFS provisioner writes
// them, as a client of the server, and the node daemon reads them if its node is the server.
package nfsmark

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// Dir is the directory in an export that holds the marks: one file for each volume's directory, named
// after the PersistentVolume. It lies beside the volumes' directories and not in them, because their
// content belongs to the tenants.
const Dir = ".flexlvm"

// ErrNone means that this may not be the export, but the directory under an export that is not mounted.
var ErrNone = errors.New("there is no " + Dir + " in it, so it is not known for an export of this provisioner, and nothing is created or deleted in it; check that its server has mounted the disk and exports the right directory. If it was restored without hidden files, make the directory " + Dir + " and delete by hand the PersistentVolumes of nfs.flexlvm.io whose directories are not there any more")

// A Mark is the content of such a file, as JSON.
type Mark struct {
	Directory        string `json:"directory"`
	PersistentVolume string `json:"persistentVolume"`
	Claim            string `json:"claim"` // namespace/name; for people
	// Cluster is the UID of the volume's cluster, that of its namespace kube-system. Marks of releases
	// before this field have none.
	Cluster string `json:"cluster,omitempty"`
	// Size is the size in bytes that the server is to enforce; 0: that is not requested.
	Size volume.Bytes `json:"size,omitempty"`
}

// maxFileSize exceeds the size of any mark's file.
const maxFileSize = 64 * volume.KiB

func fileOf(volumeName string) string { return path.Join(Dir, volumeName) }

// Read returns the mark of a volume; false if it has none. The error is ErrNone if the export has no
// marks at all.
func Read(root *os.Root, volumeName string) (m Mark, marked bool, err error) {
	if err := check(root); err != nil {
		return m, false, err
	}
	content, err := ReadFile(root, volumeName, maxFileSize)
	if errors.Is(err, fs.ErrNotExist) {
		return m, false, nil
	}
	if err != nil {
		return m, false, err
	}
	if err := json.Unmarshal(content, &m); err != nil {
		return m, false, fmt.Errorf("read mark %s: %w", fileOf(volumeName), err)
	}
	if m == (Mark{}) {
		return m, false, fmt.Errorf("read mark %s: it says nothing", fileOf(volumeName))
	}
	return m, true, nil
}

// Names returns the PersistentVolumes whose directories are marked. The error is ErrNone if the export
// has no marks at all.
func Names(root *os.Root) (names []string, err error) {
	if err := check(root); err != nil {
		return nil, err
	}
	dir, err := OpenDirectory(root, Dir)
	if err != nil {
		return nil, err
	}
	all, err := dir.Readdirnames(-1)
	if err := errors.Join(err, dir.Close()); err != nil {
		return nil, err
	}
	for _, name := range all {
		if CheckVolumeName(name) == nil { // otherwise the file is unfinished, or no mark
			names = append(names, name)
		}
	}
	return names, nil
}

func check(root *os.Root) error {
	info, err := root.Lstat(Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ErrNone
	case err != nil:
		return err
	case !info.IsDir():
		return &ForeignError{Dir, "is not a directory"}
	}
	return nil
}

// Write marks a directory. When it returns without an error, the mark is durable.
func (m Mark) Write(root *os.Root) error {
	if err := root.Mkdir(Dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return WriteJSON(root, m.PersistentVolume, m)
}
