package s3store

import (
	"context"
	"slices"

	"github.com/minio/minio-go/v7"
	"golang.org/x/sync/errgroup"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// partsAtOnce is how many parts are requested concurrently: there may be 10,000.
const partsAtOnce = 8

// Parts requests each part by its number. Only temporary failures are errors: a server without part
// numbers may respond with anything.
func (b *Bucket) Parts(ctx context.Context, object store.Object, n int) ([]int64, error) {
	sizes := make([]int64, n)
	ask := func(ctx context.Context, i int) (err error) {
		sizes[i], err = b.partSizeAgain(ctx, object, i+1)
		return err
	}
	if err := ask(ctx, 0); err != nil || sizes[0] == 0 { // then the other sizes are unknown, too
		return nil, err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(partsAtOnce)
	for i := 1; i < n; i++ {
		group.Go(func() error { return ask(ctx, i) })
	}
	if err := group.Wait(); err != nil || slices.Contains(sizes, 0) {
		return nil, err
	}
	return sizes, nil
}

// partSizeAgain is partSize with retries. It returns 0 after a permanent error.
func (b *Bucket) partSizeAgain(ctx context.Context, object store.Object, number int) (size int64, err error) {
	err = b.again(ctx, func(ctx context.Context) error {
		ctx, _, stop := store.WatchStall(ctx, b.config.Stall)
		defer stop()
		size, err = b.partSize(ctx, object, number)
		return store.Cause(ctx, err)
	})
	if err != nil && store.Classify(err) != store.Transient {
		return 0, nil
	}
	return size, withAdvice(err)
}

// partSize returns the size of one part of an object in bytes; 0 if it is unknown. Servers without part
// numbers respond with the whole object.
func (b *Bucket) partSize(ctx context.Context, object store.Object, number int) (int64, error) {
	part, err := b.stat(ctx, object.Key, minio.StatObjectOptions{VersionID: object.Version, PartNumber: number})
	if err != nil || part.ETag != object.ETag || part.Size >= object.Size {
		return 0, err
	}
	return part.Size, nil
}
