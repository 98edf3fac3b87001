package s3store

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/minio/minio-go/v7"
	"golang.org/x/sync/errgroup"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

const (
	// page is how many objects one answer lists.
	page = 1000
	// foldersAtOnce is how many folders are listed side by side.
	foldersAtOnce = 8
	// mostFolders are in one answer; with more of them each holds too few objects.
	mostFolders = 1000
	// A folder is worth a request of its own where it holds this many objects, on
	// average of the first page.
	worthARequest = 20
)

// listAll lists what the source asks for. The pages of a listing come one after the
// other, each when the one before has come. So where the first page is not all, the
// folders are listed side by side, if that is worth it; each whole, for a boundary
// between two of them rests on no order of the server's: with --sync a key that is
// missed is a file that goes. Only an attempt after a failure does, as listings
// always do from page to page: it goes on behind the last key (StartAfter).
func (b *Bucket) listAll(ctx context.Context, each func(store.Object) error) error {
	prefix := b.source.ListPrefix()
	found, more, err := b.listBelow(ctx, prefix, func(first []store.Object) bool {
		folders := foldersOf(prefix, first)
		return !b.opaque && folders > 0 && folders <= page/worthARequest
	})
	if err == nil && more {
		found, err = b.listByFolder(ctx, prefix)
	}
	if err == nil && b.source.OrObject && b.source.Object() != "" && !slices.ContainsFunc(found, isFile) {
		found, err = b.orObject(ctx, found)
	}
	if err != nil {
		return err
	}
	for _, o := range found {
		if err := each(o); err != nil {
			return err
		}
	}
	return nil
}

// isFile reports whether an object is not only the mark of a folder, as consoles make it.
func isFile(o store.Object) bool { return o.Size > 0 || !strings.HasSuffix(o.Key, "/") }

// orObject is the object that a source names below which no file is. If there is none, it
// is what marks folders there.
func (b *Bucket) orObject(ctx context.Context, marks []store.Object) ([]store.Object, error) {
	o, err := b.one(ctx, b.source.Object())
	if err != nil && store.Classify(err) == store.Gone {
		return marks, nil
	}
	return []store.Object{o}, err
}

// listByFolder lists all below a prefix, its folders side by side.
func (b *Bucket) listByFolder(ctx context.Context, prefix string) ([]store.Object, error) {
	objects, folders, err := b.level(ctx, prefix)
	if err != nil {
		return nil, err
	}
	if len(folders) < 2 {
		all, _, err := b.listBelow(ctx, prefix, nil)
		return all, err
	}
	found := make([][]store.Object, len(folders))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(foldersAtOnce)
	for i, folder := range folders {
		group.Go(func() (err error) {
			found[i], _, err = b.listBelow(ctx, folder, nil)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return append(objects, slices.Concat(found...)...), nil
}

// foldersOf counts the folders right below a prefix.
func foldersOf(prefix string, objects []store.Object) int {
	seen := make(map[string]bool)
	for _, o := range objects {
		if folder, _, deeper := strings.Cut(strings.TrimPrefix(o.Key, prefix), "/"); deeper {
			seen[folder] = true
		}
	}
	return len(seen)
}

// level lists the objects and the folders right below a prefix. There are no folders
// where there is too much of either.
func (b *Bucket) level(ctx context.Context, prefix string) (objects []store.Object, folders []string, err error) {
	err = b.again(ctx, func(ctx context.Context) error {
		objects, folders = nil, nil
		return b.iterate(ctx, minio.ListObjectsOptions{Prefix: prefix}, func(o store.Object) bool {
			if strings.HasSuffix(o.Key, "/") && o.Key != prefix {
				folders = append(folders, o.Key)
			} else {
				objects = append(objects, o)
			}
			return len(folders) <= mostFolders && len(objects) <= page
		})
	})
	if len(folders) > mostFolders || len(objects) > page {
		return nil, nil, err
	}
	slices.Sort(folders)
	return objects, slices.Compact(folders), err
}

// listBelow lists all below a prefix. If there are more objects than the first answer holds,
// and enough says of those that they are enough for now, it returns only them, and that there
// are more. enough may be nil.
func (b *Bucket) listBelow(ctx context.Context, prefix string, enough func(first []store.Object) bool) (found []store.Object, more bool, err error) {
	if enough != nil {
		ctx = beforeNextPage(ctx, func() bool {
			if enough != nil {
				more, enough = enough(found), nil // it is asked once
			}
			return !more
		})
	}
	after := ""
	err = b.again(ctx, func(ctx context.Context) error {
		return b.iterate(ctx, b.below(prefix, after), func(o store.Object) bool {
			found, after = append(found, o), o.Key // another attempt goes on there
			return true
		})
	})
	return found, more, err
}

// below asks for all below a prefix, from behind a key on.
func (b *Bucket) below(prefix, after string) minio.ListObjectsOptions {
	return minio.ListObjectsOptions{Prefix: prefix, Recursive: true, StartAfter: after, UseV1: b.opaque} // all that Pachyderm's gateway knows
}

// errEnough ends a listing of which no more is wanted.
var errEnough = errors.New("enough is listed")

// iterate gives what a listing holds to each, until that wants no more.
func (b *Bucket) iterate(ctx context.Context, options minio.ListObjectsOptions, each func(store.Object) bool) error {
	ctx, dog, stop := store.WatchStall(ctx, b.config.Stall)
	defer stop()
	noOwner := false
	options.FetchOwner = &noOwner
	err := b.client.call(ctx, func(core *connection) error {
		for info := range core.ListObjectsIter(ctx, b.source.Bucket, options) {
			if info.Err != nil {
				return info.Err
			}
			dog.Reset()
			if !each(store.Object{Key: info.Key, Size: info.Size, ETag: info.ETag, Modified: info.LastModified}) {
				return errEnough
			}
		}
		return nil
	})
	switch {
	case errors.Is(err, errEnough):
		return nil
	case err != nil:
		return hint(store.Cause(ctx, err))
	}
	return store.Cause(ctx, context.Cause(ctx))
}
