package nfsmark

import (
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"syscall"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// MaxName leaves room for the prefixes of archived and removed directories within the 255 bytes that a
// file system allows for a name.
const MaxName = 240

var (
	volumeForm    = regexp.MustCompile(`^pvc-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	directoryForm = regexp.MustCompile(`^[a-z0-9][-.a-z0-9]*$`)
)

// CheckVolumeName fails unless the NFS provisioner can have given a PersistentVolume this name. The
// error is a *volume.FieldError.
func CheckVolumeName(s string) error {
	if !volumeForm.MatchString(s) {
		return &volume.FieldError{Field: "the name of the PersistentVolume", Value: s, Reason: "is not pvc- and a UID, as this provisioner makes them"}
	}
	return nil
}

// CheckDirectory fails unless name can be the name of the PersistentVolume's directory. The
// PersistentVolume may have been bound to another claim since, so only the part with its own name is
// checked. The error is a *volume.FieldError.
func CheckDirectory(field, name, volumeName string) error {
	if err := CheckVolumeName(volumeName); err != nil {
		return err
	}
	if len(name) > MaxName || !directoryForm.MatchString(name) || !strings.HasSuffix(name, "-"+volumeName) {
		return &volume.FieldError{Field: field, Value: name, Reason: "does not end in a directory that this provisioner created for the PersistentVolume " + volumeName}
	}
	return nil
}

// A ForeignError means that something in the export is not what flexlvm created. flexlvm leaves it
// unchanged; a person has to examine it.
type ForeignError struct {
	Name, What string
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("%q %s; nothing is changed: check it on the server", e.Name, e.What)
}

// CheckPlainDirectory fails unless name is a directory of the export itself: neither a link nor a mount point of
// another file system. That error is a *ForeignError.
func CheckPlainDirectory(root *os.Root, name string) error {
	info, err := root.Lstat(name)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return &ForeignError{name, fmt.Sprintf("is not a directory (%s)", info.Mode())}
	}
	top, err := root.Stat(".")
	if err != nil {
		return err
	}
	if device(info) != device(top) {
		return &ForeignError{name, "is on another file system than the export"}
	}
	return nil
}

func device(info fs.FileInfo) uint64 { return info.Sys().(*syscall.Stat_t).Dev }
