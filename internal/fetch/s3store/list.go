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
	// page is how many objects one response lists.
	page = 1000
	// foldersAtOnce is how many folders are listed concurrently.
	foldersAtOnce = 8
	// maxFolders is how many folders one response has; with more of them each holds too few objects.
	maxFolders = 1000
	// worthARequest is how many objects of the first page a folder must hold, on average, to be worth a
	// request of its own.
	worthARequest = 20
)

// listAll lists the objects of the source. The pages of a listing must be read one after the other. So
// if the first page is not everything, the folders are listed concurrently, if that is worthwhile. Each
// folder is listed as a whole, because a boundary between two listings would rely on the server's order
// of keys: with --sync a missed key is a removed file. Only a retry after a failure relies on it, as
// listings always do from page to page: it continues after the last key (StartAfter).
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

// isFile reports whether an object is more than a folder marker, as consoles create it.
func isFile(o store.Object) bool { return o.Size > 0 || !strings.HasSuffix(o.Key, "/") }

// orObject returns the object that a source names below which there is no file. If that does not exist,
// it returns the folder markers.
func (b *Bucket) orObject(ctx context.Context, marks []store.Object) ([]store.Object, error) {
	o, err := b.one(ctx, b.source.Object())
	if err != nil && store.Classify(err) == store.Gone {
		return marks, nil
	}
	return []store.Object{o}, err
}

// listByFolder lists everything below a prefix, its folders concurrently.
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

// foldersOf counts the folders directly below a prefix.
func foldersOf(prefix string, objects []store.Object) int {
	seen := make(map[string]bool)
	for _, o := range objects {
		if folder, _, deeper := strings.Cut(strings.TrimPrefix(o.Key, prefix), "/"); deeper {
			seen[folder] = true
		}
	}
	return len(seen)
}

// level lists the objects and the folders directly below a prefix. It returns neither if there are too
// many of either.
func (b *Bucket) level(ctx context.Context, prefix string) (objects []store.Object, folders []string, err error) {
	err = b.again(ctx, func(ctx context.Context) error {
		objects, folders = nil, nil
		return b.iterate(ctx, minio.ListObjectsOptions{Prefix: prefix}, func(o store.Object) bool {
			if strings.HasSuffix(o.Key, "/") && o.Key != prefix {
				folders = append(folders, o.Key)
			} else {
				objects = append(objects, o)
			}
			return len(folders) <= maxFolders && len(objects) <= page
		})
	})
	if len(folders) > maxFolders || len(objects) > page {
		return nil, nil, err
	}
	slices.Sort(folders)
	return objects, slices.Compact(folders), err
}

// listBelow lists everything below a prefix. If there are more objects than the first response holds,
// and enough accepts these, it returns only them, and more is true. enough may be nil.
func (b *Bucket) listBelow(ctx context.Context, prefix string, enough func(first []store.Object) bool) (found []store.Object, more bool, err error) {
	if enough != nil {
		ctx = beforeNextPage(ctx, func() bool {
			if enough != nil {
				more, enough = enough(found), nil // it is called once
			}
			return !more
		})
	}
	after := ""
	err = b.again(ctx, func(ctx context.Context) error {
		return b.iterate(ctx, b.below(prefix, after), func(o store.Object) bool {
			found, after = append(found, o), o.Key // a retry continues after it
			return true
		})
	})
	return found, more, err
}

// below returns the options of a listing of everything below a prefix that begins after a key.
func (b *Bucket) below(prefix, after string) minio.ListObjectsOptions {
	return minio.ListObjectsOptions{Prefix: prefix, Recursive: true, StartAfter: after, UseV1: b.opaque} // V1 is all that Pachyderm's gateway supports
}

// errEnough ends a listing of which no more objects are wanted.
var errEnough = errors.New("enough is listed")

// iterate calls each with the objects of a listing until it returns false.
func (b *Bucket) iterate(ctx context.Context, options minio.ListObjectsOptions, each func(store.Object) bool) error {
	ctx, watchdog, stop := store.WatchStall(ctx, b.config.Stall)
	defer stop()
	noOwner := false
	options.FetchOwner = &noOwner
	err := b.client.call(ctx, func(core *connection) error {
		for info := range core.ListObjectsIter(ctx, b.source.Bucket, options) {
			if info.Err != nil {
				return info.Err
			}
			watchdog.Reset()
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
		return withAdvice(store.Cause(ctx, err))
	}
	return store.Cause(ctx, context.Cause(ctx))
}
