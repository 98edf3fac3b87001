package fetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/flexlvm/flexlvm/internal/fetch/dirstore"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// localError is an error of the directory that is uploaded. It does not stop the upload of other files:
// the disk may be failing, so the readable files have to be uploaded all the more.
type localError struct{ error }

func (e localError) Unwrap() error { return e.error }

// asLocal marks an error as one of the directory.
func asLocal(err error) error {
	if err == nil {
		return nil
	}
	return localError{err}
}

// isLocal reports whether an error is one of the directory, not of the target.
func isLocal(err error) bool {
	var e localError
	return errors.As(err, &e)
}

// requireUploaded fails if some files were not uploaded as they are now: they would be deleted with a
// directory that counts as uploaded. uploaded holds the ETags of the uploaded files, by path.
func (u *upload) requireUploaded(ctx context.Context, uploaded map[string]string) error {
	u.refused = nil
	u.progress.refused.Store(0)
	files, _, err := u.list(ctx)
	if err != nil {
		return err
	}
	changed, first := 0, ""
	for _, o := range files {
		if uploaded[o.Path] != o.ETag {
			changed++
			first = cmp.Or(first, o.Path)
		}
	}
	if changed > 0 {
		return store.Failure(fmt.Errorf("%s changed while %s was uploaded, such as %q; upload it again when nothing writes there", formatFiles(changed), u.Dir, first), true)
	}
	return nil
}

// pinned is a file that is uploaded. It marks its errors as local, to distinguish them from the
// target's.
type pinned struct{ *dirstore.Pinned }

// ReadAt implements io.ReaderAt. It returns io.EOF unwrapped, because callers compare with ==.
func (p pinned) ReadAt(b []byte, at int64) (int, error) {
	n, err := p.Pinned.ReadAt(b, at)
	if errors.Is(err, io.EOF) {
		return n, err
	}
	return n, asLocal(err)
}

// Check is dirstore.Pinned's with local errors.
func (p pinned) Check() error { return asLocal(p.Pinned.Check()) }
