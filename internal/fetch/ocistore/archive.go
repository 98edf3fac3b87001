package ocistore

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// archive is an uncompressed tar in the directory.
type archive struct{ file *os.File }

// member is a file: in a tar, or a layer itself.
type member struct {
	store.Object
	dir    bool // a directory of a tar, not a file; its Key may be "" or end in a slash
	sums   store.Sums
	layer  *layer
	tar    *archive
	offset int64 // in the tar
}

// unpacked returns the name of a layer's tar in the directory. A layer without compression is used as
// it was fetched.
func (l layer) unpacked() string {
	if l.pack == packNone {
		return l.Key
	}
	return l.Key + ".tar"
}

// HasAny implements store.Archived.
func (a *Artifact) HasAny(ctx context.Context, wanted func(store.Object) bool) bool {
	for _, l := range a.layers {
		if l.pack != "" || l.Unfetchable != "" || !wanted(l.Object) {
			continue
		}
		ctx, _, stop := store.WatchStall(ctx, a.config.Stall)
		_, _, err := a.stat(ctx, l)
		stop()
		if err == nil || store.Classify(err) != store.Gone {
			return true
		}
	}
	return false
}

// Archives implements store.Archived.
func (a *Artifact) Archives(dir *os.Root) (store.Store, error) {
	missing, wanted := map[string]layer{}, map[string]bool{}
	for _, l := range a.layers {
		if l.pack == "" {
			continue
		}
		wanted[l.unpacked()] = true
		// A file of this name is complete: it was renamed after it was synced.
		if info, err := dir.Lstat(l.unpacked()); l.pack == packNone || err != nil || !info.Mode().IsRegular() {
			missing[l.Key] = l
		}
	}
	// The caller removes the fetched archives of another revision, but does not know the tars unpacked
	// from them.
	names, err := fs.Glob(dir.FS(), "*.tar")
	for _, name := range names {
		if !wanted[name] {
			err = errors.Join(err, dir.Remove(name))
		}
	}
	if err != nil || len(missing) == 0 {
		return nil, err
	}
	return blobs{a, missing}, nil
}

// Unpack implements store.Archived. Killed at any instant, a file with the name of a tar is complete.
func (a *Artifact) Unpack(ctx context.Context, dir *os.Root) error {
	a.files = map[string]member{}
	for i := range a.layers {
		l := &a.layers[i]
		if l.pack == "" {
			a.files[l.Key] = member{Object: l.Object, sums: l.sums, layer: l}
			continue
		}
		if err := l.unpack(ctx, dir); err != nil {
			return fmt.Errorf("unpack layer %s: %w", l.digest, err)
		}
		file, err := dir.Open(l.unpacked())
		if err != nil {
			return fmt.Errorf("open unpacked layer: %w", err)
		}
		found, err := (&archive{file}).members(ctx)
		if err != nil {
			return &store.Error{Err: errors.Join(fmt.Errorf("read the tar of layer %s: %w", l.digest, err), file.Close())}
		}
		if l.image {
			union(a.files, found)
			continue
		}
		for _, m := range found { // a later layer replaces files of earlier ones
			if !m.dir {
				a.files[m.Key] = m
			}
		}
	}
	return nil
}

// unpack creates the tar of a fetched layer.
func (l layer) unpack(ctx context.Context, dir *os.Root) (err error) {
	if info, err := dir.Lstat(l.unpacked()); err == nil && info.Mode().IsRegular() {
		return nil
	}
	in, err := dir.Open(l.Key)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	const half = ".unpacking"
	if err := dir.Remove(half); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	out, err := dir.OpenFile(half, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	err = expand(ctx, out, in, l.pack)
	if err == nil {
		err = out.Sync()
	}
	if err := errors.Join(err, out.Close()); err != nil {
		return err
	}
	if err := dir.Rename(half, l.unpacked()); err != nil {
		return err
	}
	return dir.Remove(l.Key)
}

// expand decompresses in.
func expand(ctx context.Context, out io.Writer, in io.Reader, pack string) error {
	var from io.Reader
	switch pack {
	case packGzip:
		unzip, err := gzip.NewReader(in)
		if err != nil {
			return &store.Error{Err: err}
		}
		from = unzip
	case packZstd:
		unzip, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(uint64(64*store.MiB)))
		if err != nil {
			return &store.Error{Err: err}
		}
		defer unzip.Close()
		from = unzip
	}
	buf := make([]byte, store.MiB)
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		n, err := from.Read(buf)
		if _, writeErr := out.Write(buf[:n]); writeErr != nil {
			return writeErr
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil { // the layer matches its digest, so it was damaged from the start
			return &store.Error{Err: err}
		}
	}
}

// members returns the files and directories of a tar, and its other entries with the reason why they cannot be unpacked.
func (t *archive) members(ctx context.Context) ([]member, error) {
	var out []member
	in, buf := tar.NewReader(t.file), make([]byte, store.MiB)
	for {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		if header.Typeflag == tar.TypeXGlobalHeader { // git archive writes a comment there
			continue
		}
		m := member{tar: t, dir: header.Typeflag == tar.TypeDir, Object: store.Object{Key: strings.TrimPrefix(header.Name, "./"), Size: header.Size, Modified: header.ModTime.UTC(), Unfetchable: unfetchable(header)}}
		if m.Unfetchable == "" && !m.dir {
			// The tar reader does not read ahead, so the file's content begins here.
			if m.offset, err = t.file.Seek(0, io.SeekCurrent); err != nil {
				return nil, err
			}
			sum, crc := sha256.New(), store.NewCRC64()
			if err := store.HashInto(ctx, io.MultiWriter(sum, crc), in, buf); err != nil {
				return nil, err
			}
			m.ETag, m.sums = "sha256:"+hex.EncodeToString(sum.Sum(nil)), store.Sums{CRC64NVME: store.Encode(crc.Sum(nil))}
		}
		out = append(out, m)
	}
}

// unfetchable returns why an entry of a tar cannot be unpacked as a file. It is empty if the entry can, or is a directory.
func unfetchable(h *tar.Header) string {
	switch {
	case h.Typeflag == tar.TypeDir:
		return ""
	case strings.HasPrefix(path.Base(h.Name), whiteoutPrefix): // union handles those of images
		return "it has the name of a whiteout, which deletes files of other layers"
	case h.Typeflag == tar.TypeSymlink:
		return "it is a symbolic link"
	case h.Typeflag == tar.TypeLink:
		return "it is a hard link"
	case h.Typeflag == tar.TypeGNUSparse, slices.ContainsFunc(slices.Collect(maps.Keys(h.PAXRecords)), func(k string) bool { return strings.HasPrefix(k, "GNU.sparse.") }):
		return "it is packed as a sparse file"
	case h.Typeflag != tar.TypeReg:
		return "it is not a regular file"
	}
	return ""
}

// List implements store.Store.
func (a *Artifact) List(_ context.Context, each func(store.Object) error) error {
	for _, m := range a.files {
		if err := each(m.Object); err != nil {
			return err
		}
	}
	return nil
}

// Stat implements store.Store.
func (a *Artifact) Stat(ctx context.Context, key, _ string) (store.Object, store.Sums, error) {
	m, known := a.files[key]
	switch {
	case !known:
		return store.Object{}, store.Sums{}, store.ErrGone
	case m.layer != nil:
		return a.stat(ctx, *m.layer)
	}
	return m.Object, m.sums, nil
}

// Open implements store.Store.
func (a *Artifact) Open(ctx context.Context, o store.Object, part store.Span) (store.Stream, error) {
	m, known := a.files[o.Key]
	switch {
	case !known:
		return store.Stream{}, store.ErrGone
	case m.layer != nil:
		return a.open(ctx, *m.layer, part)
	}
	body := io.NopCloser(store.NewSection(m.tar.file, store.Span{Offset: m.offset + part.Offset, Length: part.Length}))
	return store.Stream{Body: body, Size: m.Size, Sums: m.sums}, nil
}

// Parts implements store.Store: blobs have none.
func (a *Artifact) Parts(context.Context, store.Object, int) ([]int64, error) { return nil, nil }
