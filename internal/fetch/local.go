package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// directory is a Store of the files below a directory, or of one file. It
// follows no symbolic link.
type directory struct {
	source Source
	// open keeps files that are read in ranges from being opened once for each.
	root *os.Root
}

// NewDirectory makes the Store of a file:// source.
func NewDirectory(source Source) (Store, error) {
	dir := filepath.Dir(source.Key)
	if strings.HasSuffix(source.Key, "/") {
		dir = source.Key
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, &Error{err: fmt.Errorf("open source: %w", err)}
	}
	return &directory{source: source, root: root}, nil
}

// errUnreadable: a file of the directory may not be read by whom the program runs as.
var errUnreadable = errors.New("it cannot be read")

// readable adds what to do where a file's mode, and nothing else, forbids to read it.
func readable(err error) error {
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return fmt.Errorf("%w: make it readable for user %d or group %d, as which fetch runs: %w", errUnreadable, os.Geteuid(), os.Getegid(), err)
}

// name is where key is in root.
func (d *directory) name(key string) string { return strings.TrimPrefix(key, d.source.Prefix) }

// objectOf is what a file is. Its inode and its change time tell changes, and another
// file of the same name elsewhere, that its size and its modification time do not.
func (d *directory) objectOf(name string, info fs.FileInfo) Object {
	o := Object{Key: d.source.Prefix + name, Size: info.Size(), Modified: info.ModTime().UTC()}
	switch mode := info.Mode(); {
	case mode.IsRegular():
		o.ETag = etagOf(info)
	case mode&fs.ModeSymlink != 0:
		o.Flaw = "it is a symbolic link"
	default:
		o.Flaw = "it is not a regular file"
	}
	return o
}

// etagOf names the content of a file. Its dots keep it from looking like a hash.
func etagOf(info fs.FileInfo) string {
	stat := info.Sys().(*syscall.Stat_t)
	var tag []string
	for _, n := range []int64{info.ModTime().UnixNano(), info.Size(), stat.Ctim.Nano(), int64(stat.Ino)} {
		tag = append(tag, strconv.FormatInt(n, 36))
	}
	return strings.Join(tag, ".")
}

func (d *directory) List(ctx context.Context, each func(Object) error) error {
	if d.source.single() {
		o, _, err := d.Stat(ctx, d.source.Key, "")
		if err != nil {
			return err
		}
		return each(o)
	}
	return fs.WalkDir(d.root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return readable(err)
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if name == controlDir && entry.IsDir() { // of a destination of fetch
			return fs.SkipDir
		}
		if entry.IsDir() {
			return nil
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		return each(d.objectOf(name, info))
	})
}

func (d *directory) Stat(_ context.Context, key, _ string) (Object, Sums, error) {
	info, err := d.root.Lstat(d.name(key))
	if os.IsNotExist(err) {
		return Object{}, Sums{}, fmt.Errorf("%w: %w", errGone, err)
	}
	if err != nil {
		return Object{}, Sums{}, readable(err)
	}
	return d.objectOf(d.name(key), info), Sums{Opaque: true}, nil
}

func (d *directory) Open(_ context.Context, object Object, part span) (Stream, error) {
	now, sums, err := d.Stat(context.Background(), object.Key, "")
	if err != nil {
		return Stream{}, err
	}
	if now.ETag != object.ETag {
		return Stream{}, errChanged
	}
	file, err := d.root.Open(d.name(object.Key))
	if err != nil {
		return Stream{}, readable(err)
	}
	body := &pinned{file: file, left: part.Length, at: part.Offset, check: func() error {
		info, err := file.Stat()
		if err != nil {
			return err
		}
		if d.objectOf(d.name(object.Key), info).ETag != object.ETag {
			return errChanged
		}
		return nil
	}}
	return Stream{Body: body, Size: now.Size, Sums: sums}, nil
}

func (d *directory) Parts(context.Context, Object, int) ([]int64, error) { return nil, nil }

// pinned reads a span of a file, and looks at its end whether it is still the
// same file.
type pinned struct {
	file     *os.File
	at, left int64
	check    func() error
}

func (p *pinned) Read(b []byte) (int, error) {
	if p.left == 0 {
		if err := p.check(); err != nil {
			return 0, err
		}
		return 0, io.EOF
	}
	n, err := p.file.ReadAt(b[:min(int64(len(b)), p.left)], p.at)
	p.at += int64(n)
	p.left -= int64(n)
	if errors.Is(err, io.EOF) && p.left > 0 {
		return n, errChanged
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

func (p *pinned) Close() error { return p.file.Close() }

func newSection(file io.ReaderAt, s span) *io.SectionReader {
	return io.NewSectionReader(file, s.Offset, s.Length)
}
