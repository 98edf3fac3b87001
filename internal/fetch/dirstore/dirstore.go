// Package dirstore reads objects from a directory, such as a mounted file system.
package dirstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// Directory is a Store of the files below a directory, or of one file. It
// follows no symbolic link.
type Directory struct {
	source store.Source
	// local: the directory is not a source, and its errors are those of a local file system.
	local bool
	// root is the open directory, or the open parent of a single file.
	root *os.Root
	// unstableInodes: the inode number of an unchanged file may change.
	unstableInodes bool
}

// Parse parses what follows file:// in a source.
func Parse(s *store.Source, rest string) error {
	if !filepath.IsAbs(rest) {
		return fmt.Errorf("is not absolute; give file:///path")
	}
	s.Key = rest
	return nil
}

// New returns the Store of a file:// source.
func New(source store.Source) (store.Store, error) { return NewIn("", source) }

// NewIn is New, but no link below bound can lead out of bound.
func NewIn(bound string, source store.Source) (store.Store, error) {
	dir := filepath.Dir(source.Key)
	if strings.HasSuffix(source.Key, "/") {
		dir = source.Key
	}
	root, err := openIn(bound, dir)
	if err != nil {
		return nil, &store.Error{Retryable: !isFinal(err), Err: fmt.Errorf("open source: %w", err)}
	}
	return &Directory{source: source, root: root, unstableInodes: hasUnstableInodes(root)}, nil
}

// isFinal reports whether opening a source failed for a reason that a person has to fix. All other
// failures may pass, as a file server may be unreachable for a while.
func isFinal(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// Open returns the Store of a directory that is not a source, such as one that is uploaded.
func Open(dir string) (*Directory, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, &store.Error{Err: fmt.Errorf("open directory: %w", err)}
	}
	return &Directory{source: store.Source{Kind: store.KindFile, Key: dir + "/", Prefix: dir + "/"}, local: true, root: root, unstableInodes: hasUnstableInodes(root)}, nil
}

// failed marks errors of a source's file system, to distinguish them from those of a destination's.
func (d *Directory) failed(err error) error {
	if d.local {
		return err
	}
	return store.FromSource(err)
}

// openIn opens a directory. If dir is below bound, no link below bound can lead out of it.
func openIn(bound, dir string) (*os.Root, error) {
	within, err := filepath.Rel(bound, dir)
	if err != nil || !filepath.IsLocal(within) {
		return os.OpenRoot(dir)
	}
	outer, err := os.OpenRoot(bound)
	if err != nil {
		return nil, err
	}
	defer func() { _ = outer.Close() }() // nothing was written
	return outer.OpenRoot(within)
}

// Readable adds advice to err if permissions forbid reading a file.
func Readable(err error) error {
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return fmt.Errorf("%w: make it readable for user %d or group %d, as which fetch runs: %w", store.ErrUnreadable, os.Geteuid(), os.Getegid(), err)
}

// Name returns the path of key in root.
func (d *Directory) Name(key string) string { return strings.TrimPrefix(key, d.source.Prefix) }

// Sync writes the cached data of the directory's file system to its disk. After it, a program that
// writes into a mapped file changes the file's times again.
func (d *Directory) Sync() error {
	dir, err := d.root.Open(".")
	if err != nil {
		return fmt.Errorf("open directory: %w", err)
	}
	defer func() { _ = dir.Close() }() // it was only synced
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return fmt.Errorf("sync file system: %w", err)
	}
	return nil
}

// lostAndFound is the directory in which e2fsck puts recovered files. mke2fs creates it readable only by root.
const lostAndFound = "lost+found"

// List implements store.Store. A directory that cannot be listed is an error: otherwise a caller would
// take its files for deleted.
func (d *Directory) List(ctx context.Context, each func(store.Object) error) error {
	if d.source.Single() {
		o, _, err := d.Stat(ctx, d.source.Key, "")
		if err != nil {
			return err
		}
		return each(o)
	}
	return d.walk(ctx, each, func(_ string, err error) error { return d.failed(err) })
}

// ListRest lists all files below a directory that can be listed, while others may write there. A
// subdirectory that cannot be listed is reported as an object that is Unfetchable. Files that are deleted
// before they are read are skipped.
func (d *Directory) ListRest(ctx context.Context, each func(store.Object) error) error {
	return d.walk(ctx, each, func(name string, err error) error {
		switch {
		case name == ".":
			return err
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case store.Classify(err) == store.Transient:
			return err // a retry may list everything
		}
		return each(store.Object{Key: d.source.Prefix + name, Unfetchable: "it cannot be listed: " + err.Error()})
	})
}

// walk calls each with all files below a directory, and failed with the paths that cannot be read. If
// failed returns nil, the walk continues with the entries that were listed before the error.
func (d *Directory) walk(ctx context.Context, each func(store.Object) error, failed func(name string, err error) error) error {
	return fs.WalkDir(trackedFS{d.root.FS(), ctx, d}, ".", func(name string, entry fs.DirEntry, err error) error {
		if entry != nil && entry.IsDir() && (name == store.ControlDir || name == lostAndFound && d.skipsRecovered(entry, err)) {
			return fs.SkipDir // belongs to fetch, or to the file system
		}
		if err != nil {
			return failed(name, Readable(err))
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if entry.IsDir() {
			return nil
		}
		returned := store.TrackCall(ctx, statting, d.source.Prefix+name)
		info, err := entry.Info()
		returned()
		if err != nil {
			return failed(name, Readable(err))
		}
		return each(d.objectOf(name, info))
	})
}

// skipsRecovered reports whether lostAndFound is left out. In a source it need not be copied. In a local directory
// its content may exist nowhere else, so it is left out only if it is the file system's own, which root owns, and err
// is that it may not be listed.
func (d *Directory) skipsRecovered(entry fs.DirEntry, err error) bool {
	if !d.local {
		return true
	}
	if !errors.Is(err, fs.ErrPermission) {
		return false
	}
	info, err := entry.Info()
	return err == nil && info.Sys().(*syscall.Stat_t).Uid == 0
}

// Descriptions of calls, for store.TrackCall.
const (
	statting = "looking at"
	listing  = "listing"
	opening  = "opening"
	reading  = "reading"
)

// trackedFS is the directory for fs.WalkDir. It announces its calls.
type trackedFS struct {
	fs.FS
	ctx context.Context
	dir *Directory
}

// Stat implements fs.StatFS.
func (w trackedFS) Stat(name string) (fs.FileInfo, error) {
	defer store.TrackCall(w.ctx, statting, w.dir.source.Prefix+name)()
	return w.dir.root.Stat(name)
}

// listedAtOnce is how many names one call lists: a large directory takes long to list, and each call
// has to return.
const listedAtOnce = 512

// ReadDir implements fs.ReadDirFS.
func (w trackedFS) ReadDir(name string) ([]fs.DirEntry, error) {
	path := w.dir.source.Prefix + name
	returned := store.TrackCall(w.ctx, listing, path)
	dir, err := w.dir.root.Open(name)
	returned()
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }() // it was only read
	var all []fs.DirEntry
	for {
		returned := store.TrackCall(w.ctx, listing, path)
		some, err := dir.ReadDir(listedAtOnce)
		returned()
		all = append(all, some...)
		if err == nil {
			continue
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		slices.SortFunc(all, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
		return all, err
	}
}

// Stat implements store.Store.
func (d *Directory) Stat(ctx context.Context, key, _ string) (store.Object, store.Sums, error) {
	defer store.TrackCall(ctx, statting, key)()
	info, err := d.root.Lstat(d.Name(key))
	if os.IsNotExist(err) {
		return store.Object{}, store.Sums{}, fmt.Errorf("%w: %w", store.ErrGone, err)
	}
	if err != nil {
		return store.Object{}, store.Sums{}, d.failed(Readable(err))
	}
	return d.objectOf(d.Name(key), info), store.Sums{Opaque: true}, nil
}

// Open implements store.Store.
func (d *Directory) Open(ctx context.Context, object store.Object, part store.Span) (store.Stream, error) {
	now, sums, err := d.Stat(ctx, object.Key, "")
	if err != nil {
		return store.Stream{}, err
	}
	if now.ETag != object.ETag {
		return store.Stream{}, store.ErrChanged
	}
	returned := store.TrackCall(ctx, opening, object.Key)
	file, err := d.root.Open(d.Name(object.Key))
	returned()
	if err != nil {
		return store.Stream{}, d.failed(Readable(err))
	}
	body := &Pinned{ctx: ctx, dir: d, object: object, file: file, left: part.Length, at: part.Offset}
	return store.Stream{Body: body, Size: now.Size, Sums: sums}, nil
}

// Parts implements store.Store: files have none.
func (d *Directory) Parts(context.Context, store.Object, int) ([]int64, error) { return nil, nil }

// Pinned reads a span of a file, and checks at the end that the file has not changed.
type Pinned struct {
	ctx      context.Context // for store.TrackCall
	dir      *Directory
	object   store.Object
	file     *os.File
	at, left int64
}

// Check fails with store.ErrChanged if the file has changed since it was opened.
func (p *Pinned) Check() error {
	defer store.TrackCall(p.ctx, statting, p.object.Key)()
	etag, err := p.dir.etagNow(p.file, unix.Statx)
	if err != nil {
		return err
	}
	if etag != p.object.ETag {
		return store.ErrChanged
	}
	return nil
}

// ReadAt implements io.ReaderAt for the whole file.
func (p *Pinned) ReadAt(b []byte, at int64) (int, error) {
	defer store.TrackCall(p.ctx, reading, p.object.Key)()
	return p.file.ReadAt(b, at)
}

// Read implements io.Reader for the span.
func (p *Pinned) Read(b []byte) (int, error) {
	if p.left == 0 {
		if err := p.Check(); err != nil {
			return 0, p.dir.failed(err)
		}
		return 0, io.EOF
	}
	n, err := p.ReadAt(b[:min(int64(len(b)), p.left)], p.at)
	p.at += int64(n)
	p.left -= int64(n)
	if errors.Is(err, io.EOF) && p.left > 0 {
		return n, store.ErrChanged
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, p.dir.failed(err)
}

// Close implements io.Closer. On NFS, closing may wait for the server.
func (p *Pinned) Close() error {
	defer store.TrackCall(p.ctx, "closing", p.object.Key)()
	return p.file.Close()
}
