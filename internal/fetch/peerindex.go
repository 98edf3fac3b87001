package fetch

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/peer"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// sha256 returns the SHA-256 of the file of e; empty if it is not known.
func (e Entry) sha256() string {
	if e.SHA256 == "" && e.Check == store.CheckSHA256 {
		return e.Checksum
	}
	return e.SHA256
}

// indexOf returns the index of a directory by its manifest, and the entries without a SHA-256, which
// are missing from it.
func indexOf(entries map[string]Entry, revision string) (out peer.Index, missing []Entry) {
	out.Revision = revision
	for _, path := range slices.Sorted(maps.Keys(entries)) {
		e := entries[path]
		if e.sha256() == "" {
			missing = append(missing, e)
			continue
		}
		out.Files = append(out.Files, peer.File{Path: e.Path, Bytes: e.Bytes, ETag: e.ETag, VersionID: e.VersionID, Modified: e.Modified, SHA256: e.sha256()})
	}
	return out, missing
}

// makeIndex computes the missing SHA-256 sums, and reports the digest of the index. A directory with
// refused objects, or with files that were changed here, has no index: it is not all of the dataset. If
// the base stays, keepBase has reported its index, and the directory of this run is empty.
func (r *run) makeIndex(ctx context.Context) error {
	if r.base != nil && r.base.unchanged {
		return nil
	}
	if !r.Index || r.progress.Refused() > 0 || r.changedHere > 0 {
		return nil
	}
	revision := r.revision
	if c, err := r.wasComplete(); err != nil {
		return err
	} else if c != nil && revision == "" {
		revision = c.Revision
	}
	index, missing := indexOf(r.manifest.entries, revision)
	if len(missing) > 0 {
		if err := r.hashAll(ctx, missing); err != nil {
			return err
		}
		index, _ = indexOf(r.manifest.entries, revision)
	}
	_, digest, err := index.Encode()
	if errors.Is(err, peer.ErrTooLarge) {
		r.progress.Note(err.Error())
		return nil
	}
	if err != nil {
		return err
	}
	r.progress.setIndex(digest)
	return nil
}

// hashAll reads files again and appends their SHA-256 to the manifest.
func (r *run) hashAll(ctx context.Context, entries []Entry) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i := range entries {
		group.Go(func() (err error) {
			entries[i].SHA256, err = r.hashOne(ctx, entries[i])
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := r.manifest.append(entries...); err != nil {
		return err
	}
	return r.dest.Sync()
}

// hashOne returns the SHA-256 of a file. It fails if the file is not what was received.
func (r *run) hashOne(ctx context.Context, e Entry) (string, error) {
	file, err := r.dest.OpenFile(e.Path)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", e.Path, err)
	}
	defer func() { _ = file.Close() }() // it was only read
	sha, crc := sha256.New(), store.NewCRC64()
	both := hashes{sha, crc}
	if err := store.HashInto(ctx, both, io.NewSectionReader(file, 0, e.Bytes), make([]byte, maxBuffer)); err != nil {
		return "", fmt.Errorf("read %s: %w", e.Path, err)
	}
	if e.CRC64 == "" {
		return "", fmt.Errorf("%s: the manifest has no CRC of it, so nothing shows that it is as it was fetched; fetch into an empty directory", e.Path)
	}
	if e.CRC64 != store.Encode(crc.Sum(nil)) {
		return "", fmt.Errorf("%s: %w", e.Path, errDisk)
	}
	return store.Encode(sha.Sum(nil)), nil
}

// hashes writes the same bytes to two hashes; the first is the sum.
type hashes struct {
	hash.Hash
	second hash.Hash
}

func (h hashes) Write(data []byte) (int, error) {
	_, _ = h.second.Write(data) // hashes do not fail
	return h.Hash.Write(data)
}

// completeIndex returns the index of a directory that an earlier run has completed.
func completeIndex(root *os.Root, entries map[string]Entry) (peer.Index, error) {
	c, err := readComplete(root, destination.CompleteFile)
	if err != nil {
		return peer.Index{}, err
	}
	if c == nil {
		return peer.Index{}, errors.New("the directory is not complete; fetch into it first")
	}
	index, missing := indexOf(entries, c.Revision)
	if len(missing) > 0 {
		return peer.Index{}, fmt.Errorf("the SHA-256 of %s is not known, one of %s; run fetch with --index first", missing[0].Path, formatFiles(len(missing)))
	}
	return index, nil
}
