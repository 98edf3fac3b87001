package vm

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// archiveWriter writes a cpio archive of the "newc" kind, which the kernel unpacks as the initial root file system.
// Archives may be concatenated.
type archiveWriter struct {
	w       *bufio.Writer
	inode   int
	written int64
	dirs    map[string]bool
}

// writeArchive writes an archive of files, a map of paths in the archive to paths on this machine. A folder is
// added with its content, and links stay links. Everything belongs to root.
func writeArchive(w io.Writer, files map[string]string) error {
	a := &archiveWriter{w: bufio.NewWriterSize(w, 1<<20), dirs: map[string]bool{"": true}}
	for _, target := range slices.Sorted(maps.Keys(files)) {
		if err := a.addTree(path.Clean("/"+target), files[target]); err != nil {
			return fmt.Errorf("pack %s: %w", files[target], err)
		}
	}
	if err := a.entry("TRAILER!!!", 0, nil, 0); err != nil {
		return err
	}
	if err := a.pad(512); err != nil {
		return err
	}
	return a.w.Flush()
}

func (a *archiveWriter) addTree(target, source string) error {
	source, err := filepath.EvalSymlinks(source) // the caller's path may be a link
	if err != nil {
		return err
	}
	return filepath.WalkDir(source, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(target+strings.TrimPrefix(file, source), "/")
		if entry.IsDir() {
			return a.addDirs(name)
		}
		if err := a.addDirs(path.Dir(name)); err != nil {
			return err
		}
		return a.addFile(name, file, entry)
	})
}

func (a *archiveWriter) addDirs(name string) error {
	if name == "." || a.dirs[name] {
		return nil
	}
	if err := a.addDirs(path.Dir(name)); err != nil {
		return err
	}
	a.dirs[name] = true
	return a.entry(name, 0o040755, nil, 0)
}

func (a *archiveWriter) addFile(name, file string, entry fs.DirEntry) error {
	info, err := entry.Info()
	if err != nil {
		return err
	}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		link, err := os.Readlink(file)
		if err != nil {
			return err
		}
		return a.entry(name, 0o120777, strings.NewReader(link), int64(len(link)))
	case info.Mode().IsRegular():
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		defer f.Close()
		return a.entry(name, 0o100000|uint32(info.Mode().Perm()), f, info.Size())
	default:
		return fmt.Errorf("%s is neither file, folder nor link", file)
	}
}

// entry writes one header and its content, each padded to four bytes.
func (a *archiveWriter) entry(name string, mode uint32, content io.Reader, size int64) error {
	if size > 1<<32-1 {
		return fmt.Errorf("%s is larger than an archive can hold; put it on a disk", name)
	}
	a.inode++
	n, err := fmt.Fprintf(a.w, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		a.inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name)+1, 0, name)
	a.written += int64(n)
	if err == nil {
		err = a.pad(4)
	}
	if err != nil || size == 0 {
		return err
	}
	copied, err := io.CopyN(a.w, content, size)
	a.written += copied
	if err != nil {
		return err
	}
	return a.pad(4)
}

func (a *archiveWriter) pad(to int64) error {
	n := (to - a.written%to) % to
	_, err := a.w.Write(make([]byte, n))
	a.written += n
	return err
}
