package fetch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// isDone reports whether a run need not list the source: without Sync, if an earlier run has completed the same
// selection and refused no key. A refused key may have been removed or renamed since. It sets r.retriesRefused.
func (r *run) isDone() (bool, error) {
	if r.Sync {
		return false, nil
	}
	c, err := r.wasComplete()
	if c == nil {
		return false, err
	}
	r.retriesRefused = c.Refused > 0 || c.Retried
	return c.Refused == 0 && r.completeAlready(*c), nil
}

// keepsChanged reports whether the run replaces nothing that was changed or created in the directory.
func (r *run) keepsChanged() bool { return r.KeepChanged || r.retriesRefused }

// excludeChanged removes objects from p.fetch, with KeepChanged or if an earlier run has completed the selection except for
// refused keys. Programs may have used the directory, so an object is fetched only if its path is empty, or holds what a run left
// there. A changed file whose object is still the fetched one stays, and is no reason to refuse the object; all other
// objects that are not fetched are refused.
func (r *run) excludeChanged(p *plan) error {
	if !r.keepsChanged() {
		return nil
	}
	var first error
	p.fetch = slices.DeleteFunc(p.fetch, func(o store.Object) bool {
		state, err := r.stateOf(o)
		if first == nil {
			first = err
		}
		e, known := r.manifest.entries[o.Path]
		switch {
		case err != nil || state != pathChanged:
			return false
		case known && e.object().Same(o):
			r.changedHere++
		default:
			r.noteRefusal(Refusal{o.Key, "its path holds something that was changed or created here, so it was not fetched; remove that, or move it elsewhere"})
		}
		return true
	})
	if r.changedHere > 0 {
		r.progress.Note(fmt.Sprintf("files that were changed here and stay as they are: %d", r.changedHere))
	}
	return first
}

// pathState is what the path of an object holds.
type pathState int

const (
	// pathEmpty: nothing. A file or a link may be in the way above it, which fetching the object reports.
	pathEmpty pathState = iota
	// pathFetched: the file that a run has fetched.
	pathFetched
	// pathChanged: anything else.
	pathChanged
)

// stateOf returns what the path of an object holds, as far as can be seen without reading a file that the manifest
// describes.
func (r *run) stateOf(o store.Object) (pathState, error) {
	info, err := r.dest.Lstat(o.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return pathEmpty, nil
	case err != nil:
		return pathChanged, fmt.Errorf("check %s: %w", o.Path, err)
	}
	if e, known := r.manifest.entries[o.Path]; known && e.describes(info) || r.isNoted(o.Path) {
		return pathFetched, nil
	}
	return pathChanged, nil
}

// isNoted reports whether a path holds exactly the content of an object that the journal describes, also if the object has
// changed since. A killed run may have fetched the file, and not entered it into the manifest. That the journal names the
// path is not enough: a program may have changed the file since, or created one while only a part was received. Notes that
// are older than the manifest's entry do not count: that content was replaced, so a program has restored it.
func (r *run) isNoted(path string) bool {
	all := r.noted[path]
	if len(all) == 0 {
		return false
	}
	e, known := r.manifest.entries[path]
	w := &worker{run: r, buf: make([]byte, maxBuffer)}
	for _, left := range slices.Backward(all) {
		o := left.notes[0].object()
		if file, is := w.openPublished(o, left); is {
			_ = file.Close() // it was only read
			return true
		}
		if known && e.object().Same(o) {
			break
		}
	}
	return false
}

// checkReplaceable returns what the path of a received object holds: pathEmpty or pathFetched. It fails if a program has
// changed or created something there. The file is read, because a program may keep its size and set its time back
// (`cp -p`, `rsync -t`). If it may not be read, which a program can cause with chmod, the error is fs.ErrPermission, too.
func (r *run) checkReplaceable(ctx context.Context, o store.Object) (pathState, error) {
	other, err := r.hasOtherContent(ctx, o)
	state := pathChanged
	if err == nil && !other {
		state, err = r.stateOf(o)
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		err = fmt.Errorf("%s %w: it may not be read, so whether it was changed here is not known; make it readable for fetch, remove it, or move it elsewhere: %w", o.Path, store.ErrInTheWay, err)
	case err == nil && state == pathChanged:
		err = fmt.Errorf("%s %w: it was changed or created here, perhaps while its object was fetched; remove it, or move it elsewhere", o.Path, store.ErrInTheWay)
	}
	return state, err
}

// hasOtherContent reports whether the path of an object holds a file that looks like the fetched one and has other
// content.
func (r *run) hasOtherContent(ctx context.Context, o store.Object) (bool, error) {
	e, known := r.manifest.entries[o.Path]
	if !known {
		return false, nil
	}
	if here, err := present(r.dest, e); err != nil || !here {
		return false, err
	}
	file, err := r.dest.OpenFile(o.Path)
	if err != nil {
		return false, fmt.Errorf("read %s: %w", o.Path, err)
	}
	defer func() { _ = file.Close() }() // it was only read
	crc := store.NewCRC64()
	if err := store.HashInto(ctx, crc, file, make([]byte, maxBuffer)); err != nil {
		return false, fmt.Errorf("read %s: %w", o.Path, err)
	}
	return store.Encode(crc.Sum(nil)) != e.CRC64 && !r.isNoted(o.Path), nil
}
