package quota

import (
	"fmt"
	"os"
	"unsafe"
)

// ProjectOf returns the project of a file or directory.
func ProjectOf(f *os.File) (Project, error) {
	var a fsXAttr
	if err := ioctl(f, fsGetXAttr, unsafe.Pointer(&a)); err != nil {
		return 0, fmt.Errorf("read project of %s: %w", f.Name(), err)
	}
	return a.project, nil
}

// Flags of files that may not be changed, or only at their end (linux/fs.h): nobody deletes them,
// nor what is in such a directory.
const (
	immutable  = 0x00000008 // FS_XFLAG_IMMUTABLE
	appendOnly = 0x00000010 // FS_XFLAG_APPEND
)

// Disown takes a directory out of its project and lets what comes into it from now on keep its own,
// so that anything can be moved there, however full the project is, and lets it be changed.
func Disown(dir *os.File) error {
	return change(dir, func(a *fsXAttr) { a.flags, a.project = a.flags&^(projectInherit|immutable|appendOnly), 0 })
}

// Unprotect lets a file or a directory be changed and deleted whose flags forbid it.
func Unprotect(f *os.File) error {
	return change(f, func(a *fsXAttr) { a.flags &^= immutable | appendOnly })
}

func change(f *os.File, edit func(*fsXAttr)) error {
	var a fsXAttr
	err := ioctl(f, fsGetXAttr, unsafe.Pointer(&a))
	if was := a; err == nil {
		if edit(&a); a != was {
			err = ioctl(f, fsSetXAttr, unsafe.Pointer(&a))
		}
	}
	if err != nil {
		return fmt.Errorf("change the attributes of %s: %w", f.Name(), err)
	}
	return nil
}
