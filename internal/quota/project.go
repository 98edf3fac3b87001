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

// Flags of files that may not be changed, or only appended to (linux/fs.h): such a file cannot be
// deleted, nor can the content of such a directory.
const (
	immutable  = 0x00000008 // FS_XFLAG_IMMUTABLE
	appendOnly = 0x00000010 // FS_XFLAG_APPEND
)

// Disown removes a directory from its project, and lets new content keep its own project, so that
// anything can be moved there, however full the project is. It also clears the directory's
// protection.
func Disown(dir *os.File) error {
	return change(dir, func(a *fsXAttr) { a.flags, a.project = a.flags&^(projectInherit|immutable|appendOnly), 0 })
}

// Unprotect clears the flags that forbid changing and deleting a file or a directory.
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
