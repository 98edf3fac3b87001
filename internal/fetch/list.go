package fetch

import (
	"context"
	"slices"
	"strings"

	"github.com/minio/minio-go/v7"
	"golang.org/x/sync/errgroup"
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
// folders that follow are listed side by side.
func (b *bucket) listAll(ctx context.Context, each func(Object) error) error {
	prefix := b.source.listPrefix()
	first, err := b.listBelow(ctx, prefix, "", page)
	if err != nil {
		return err
	}
	for _, o := range first {
		if err := each(o); err != nil {
			return err
		}
	}
	if len(first) < page {
		return nil
	}
	rest, err := b.listAfter(ctx, prefix, first)
	if err != nil {
		return err
	}
	for _, o := range rest {
		if err := each(o); err != nil {
			return err
		}
	}
	return nil
}

// listAfter lists what comes after the first page.
func (b *bucket) listAfter(ctx context.Context, prefix string, first []Object) ([]Object, error) {
	after := first[len(first)-1].Key
	if n := foldersOf(prefix, first); b.opaque || n == 0 || n > page/worthARequest {
		return b.listBelow(ctx, prefix, after, 0)
	}
	objects, folders, err := b.level(ctx, prefix, after)
	if err != nil {
		return nil, err
	}
	if len(folders) < 2 {
		return b.listBelow(ctx, prefix, after, 0)
	}
	found := make([][]Object, len(folders))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(foldersAtOnce)
	for i, folder := range folders {
		group.Go(func() (err error) {
			from := ""
			if strings.HasPrefix(after, folder) {
				from = after
			}
			found[i], err = b.listBelow(ctx, folder, from, 0)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return append(objects, slices.Concat(found...)...), nil
}

// foldersOf counts the folders right below a prefix.
func foldersOf(prefix string, objects []Object) int {
	seen := make(map[string]bool)
	for _, o := range objects {
		if folder, _, deeper := strings.Cut(o.Key[len(prefix):], "/"); deeper {
			seen[folder] = true
		}
	}
	return len(seen)
}

// level lists the objects right below a prefix that come after a key, and the folders
// that may have such objects. There are no folders where there is too much of either.
func (b *bucket) level(ctx context.Context, prefix, after string) (objects []Object, folders []string, err error) {
	err = b.again(ctx, func(ctx context.Context) error {
		objects, folders = nil, nil
		return b.iterate(ctx, minio.ListObjectsOptions{Prefix: prefix}, func(o Object) bool {
			switch folder := strings.HasSuffix(o.Key, "/") && o.Key != prefix; {
			case folder && (o.Key > after || strings.HasPrefix(after, o.Key)):
				folders = append(folders, o.Key)
			case !folder && o.Key > after:
				objects = append(objects, o)
			}
			return len(folders) <= mostFolders && len(objects) <= page
		})
	})
	if len(folders) > mostFolders || len(objects) > page {
		return nil, nil, err
	}
	return objects, folders, err
}

// listBelow lists all below a prefix that comes after a key, but no more than most; 0
// is all of it.
func (b *bucket) listBelow(ctx context.Context, prefix, after string, most int) (found []Object, err error) {
	err = b.again(ctx, func(ctx context.Context) error {
		options := minio.ListObjectsOptions{Prefix: prefix, Recursive: true, StartAfter: after, UseV1: b.opaque} // all that Pachyderm's gateway knows
		return b.iterate(ctx, options, func(o Object) bool {
			found, after = append(found, o), o.Key // another attempt goes on there
			return len(found) != most
		})
	})
	return found, err
}

// iterate gives what a listing holds to each, until that wants no more.
func (b *bucket) iterate(ctx context.Context, options minio.ListObjectsOptions, each func(Object) bool) error {
	ctx, dog, stop := watch(ctx, b.config.Stall)
	defer stop()
	noOwner := false
	options.FetchOwner = &noOwner
	for info := range b.core.ListObjectsIter(ctx, b.source.Bucket, options) {
		if info.Err != nil {
			return hint(cause(ctx, info.Err))
		}
		dog.reset()
		if !each(Object{Key: info.Key, Size: info.Size, ETag: info.ETag, Modified: info.LastModified}) {
			return nil
		}
	}
	return cause(ctx, context.Cause(ctx))
}
