package fetch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"time"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// A base is the version before the one that a run creates. A run never changes it.
type base struct {
	root     *os.Root // holds both versions
	from, to string   // the data of the base and of the new version, below root
	complete complete
	entries  map[string]Entry
	// unchanged reports that the base already has what the source has, so the run created nothing.
	unchanged bool
}

// Lstat describes a file of the base.
func (b *base) Lstat(name string) (fs.FileInfo, error) { return b.root.Lstat(path.Join(b.from, name)) }

// baseIsCurrent reports whether the base is complete, at the source's revision and for the current selection, and lacks no
// object that was gone and is back.
func (r *run) baseIsCurrent(ctx context.Context, packed store.Archived) bool {
	b := r.base
	if b == nil || b.complete.Revision != packed.Revision() || !b.complete.selects(r.summary()) {
		return false
	}
	for _, e := range b.entries {
		if here, err := present(b, e); err != nil || !here || !r.trusts(e.Check) {
			return false
		}
	}
	return !b.complete.Gone || r.stillLacks(ctx, packed, b.entries)
}

// reuseUnchanged moves files that the base has in the source's state from p.fetch to p.link, without those
// of withoutMismatches. unchanged reports that the base has exactly the source's files, so there is nothing
// to do.
func (r *run) reuseUnchanged(p *plan, files []store.Object) (unchanged bool, err error) {
	if r.base == nil {
		return false, nil
	}
	r.keepShared(p)
	have := map[string]Entry{}
	for _, o := range files {
		e, known := r.base.entries[o.Path]
		if !known || !e.object().Same(o) || !r.trusts(e.Check) {
			continue
		}
		here, err := present(r.base, e)
		if err != nil {
			return false, err
		}
		if here {
			have[o.Path] = e
		}
	}
	if len(have) == len(files) && len(have) == len(r.base.entries) {
		r.keepBase()
		return true, nil
	}
	r.withoutMismatches(have, p.keep)
	p.fetch = slices.DeleteFunc(p.fetch, func(o store.Object) bool {
		e, is := have[o.Path]
		if is {
			p.link = append(p.link, e)
		}
		return is
	})
	return false, nil
}

// keepShared excludes files that the base holds, too, from the space that the plan expects to free.
func (r *run) keepShared(p *plan) {
	for _, o := range p.fetch {
		if e, known := r.manifest.entries[o.Path]; known && r.isShared(e) {
			p.replaced.bytes -= e.Bytes
			p.replaced.inodes--
		}
	}
	for _, e := range p.gone {
		if r.isShared(e) {
			p.shared += e.Bytes
		}
	}
}

// isShared reports whether an entry's file is a hard link to a file of the base.
func (r *run) isShared(e Entry) bool {
	here, err := r.dest.Lstat(e.Path)
	if err != nil || !e.describes(here) {
		return false
	}
	there, err := r.base.Lstat(e.Path)
	return err == nil && os.SameFile(here, there)
}

// keepBase sets the progress to complete: the base has what the source has.
func (r *run) keepBase() {
	total := int64(0)
	for _, e := range r.base.entries {
		r.progress.countVerified(e.Check)
		r.progress.fileDone(e.Bytes)
		total += e.Bytes
	}
	r.setTotals(int64(len(r.base.entries)), total)
	r.progress.arrived.Add(total)
	r.base.unchanged = true
	if index, missing := indexOf(r.base.entries, r.base.complete.Revision); r.Index && len(missing) == 0 {
		if _, digest, err := index.Encode(); err == nil {
			r.progress.setIndex(digest)
		}
	}
	r.setComplete(r.base.complete, len(r.base.entries), total)
}

// setComplete sets the progress to complete with what an earlier run has completed.
func (r *run) setComplete(c complete, files int, bytes int64) {
	r.progress.setContents(c.Contents)
	r.progress.set(protocol.StateComplete, fmt.Sprintf("complete already: %s, %s", formatFiles(files), FormatBytes(bytes))+r.refusals())
}

// link creates hard links to files of the base. Like fetched files, they enter the manifest once they
// are durable.
func (r *run) link(ctx context.Context, entries []Entry) error {
	if err := r.dropEntries(entries); err != nil {
		return err
	}
	for batch := range slices.Chunk(entries, batchFiles) {
		for _, e := range batch {
			if err := r.linkOne(e); err != nil {
				return fmt.Errorf("copy %s from the previous version: %w", e.Path, err)
			}
		}
		if err := r.dest.Sync(); err != nil {
			return err
		}
		if err := r.manifest.append(batch...); err != nil {
			return err
		}
		for _, e := range batch {
			r.progress.countVerified(e.Check)
			r.arrived(e.Bytes)
			r.progress.fileDone(e.Bytes)
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
	}
	return nil
}

// dropEntries removes the manifest's entries of files that files of the base are about to replace. The
// base's files are older than these entries, so after a kill a run could not tell by their times that
// they are other files.
func (r *run) dropEntries(entries []Entry) error {
	var gone []Entry
	now := time.Now().UTC()
	for _, e := range entries {
		if _, known := r.manifest.entries[e.Path]; known {
			gone = append(gone, Entry{Path: e.Path, FetchedAt: now, Deleted: true})
		}
	}
	if len(gone) == 0 {
		return nil
	}
	if err := r.manifest.append(gone...); err != nil {
		return err
	}
	return r.dest.Sync()
}

func (r *run) linkOne(e Entry) error {
	if err := r.dest.Mkdir(destination.Parent(e.Path)); err != nil {
		return err
	}
	from, to := path.Join(r.base.from, e.Path), path.Join(r.base.to, e.Path)
	err := r.base.root.Link(from, to)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	// The file is from an earlier run, which linked it already or fetched it when the source had
	// something else.
	if err := r.dest.Remove(e.Path); err != nil {
		return err
	}
	if err := r.dest.Mkdir(destination.Parent(e.Path)); err != nil {
		return err
	}
	return r.base.root.Link(from, to)
}

// requireUnchanged fails if the source of a later version no longer matches its listing: the fetched
// files may come from two states that never existed at the same time. A source that has revisions was
// asked for one of them. Folder markers are not files, so versions do not differ by them.
func (r *run) requireUnchanged(ctx context.Context, files []store.Object) error {
	if r.base == nil || r.revision != "" {
		return nil
	}
	was := make(map[string]store.Object, len(files))
	for _, o := range files {
		was[o.Path] = o
	}
	changed, first := 0, ""
	note := func(name string) {
		if changed++; first == "" {
			first = name
		}
	}
	refused := map[string]bool{}
	for _, refusal := range r.refused {
		refused[refusal.Key] = true
	}
	err := r.eachListed(ctx, func(o store.Object, wanted bool) {
		if !wanted || !r.selection.Wants(o.Path) || isMarker(o) {
			return
		}
		if before, known := was[o.Path]; known && !before.Same(o) || !known && !refused[o.Key] {
			note(o.Path)
		}
		delete(was, o.Path)
	})
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(was)) {
		note(name)
	}
	if changed > 0 {
		return store.Failure(fmt.Errorf("the source changed while it was loaded: %s, such as %s; the previous version stays until a load sees the source unchanged", formatFiles(changed), first), true)
	}
	return nil
}

// contentsOf returns a digest of the files of a manifest.
func contentsOf(entries map[string]Entry) string {
	const digits = 12
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		e := entries[name]
		line, err := json.Marshal([]any{e.Path, e.Bytes, e.CRC64})
		if err != nil {
			panic(err) // strings and a number always marshal
		}
		_, _ = h.Write(line)
	}
	return hex.EncodeToString(h.Sum(nil))[:digits]
}
