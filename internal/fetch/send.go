package fetch

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"
)

// Headers of S3 that say which checksum an upload has.
const (
	headerCRC64     = "X-Amz-Checksum-Crc64nvme"
	headerAlgorithm = "X-Amz-Checksum-Algorithm"
	headerType      = "X-Amz-Checksum-Type"
)

// abortTimeout keeps a server that hangs from holding up the end of an upload.
const abortTimeout = 10 * time.Second

// partThreads is how many parts of one file are on their way at once.
const partThreads = 4

// send uploads a file whose CRC64NVME is known, in one request or in parts. The
// server refuses what arrives otherwise.
func (b *bucket) send(ctx context.Context, key string, file io.ReaderAt, size int64, crc []byte) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if size > uploadPart {
		return b.sendParts(ctx, key, file, size, crc)
	}
	_, err := b.core.PutObject(ctx, b.source.Bucket, key, io.NewSectionReader(file, 0, size), size, "", "",
		minio.PutObjectOptions{UserMetadata: map[string]string{headerCRC64: encode(crc)}})
	return hint(err)
}

func (b *bucket) sendParts(ctx context.Context, key string, file io.ReaderAt, size int64, crc []byte) error {
	id, err := b.core.NewMultipartUpload(ctx, b.source.Bucket, key, minio.PutObjectOptions{UserMetadata: map[string]string{
		headerAlgorithm: minio.ChecksumCRC64NVME.String(), headerType: minio.ChecksumFullObjectMode.String(),
	}})
	if err != nil {
		return hint(err)
	}
	parts, err := b.eachPart(ctx, key, id, file, size)
	if err == nil {
		_, err = b.core.CompleteMultipartUpload(ctx, b.source.Bucket, key, id, parts, minio.PutObjectOptions{UserMetadata: map[string]string{
			headerCRC64: encode(crc), headerType: minio.ChecksumFullObjectMode.String(),
		}})
	}
	if err != nil {
		// What was sent would be charged for ever. The context may have ended.
		last, stop := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
		defer stop()
		if abortErr := b.core.AbortMultipartUpload(last, b.source.Bucket, key, id); abortErr != nil {
			err = fmt.Errorf("%w (and the parts that were sent stay at the server: %w)", err, abortErr)
		}
		return hint(err)
	}
	return nil
}

// eachPart sends all parts, some at once.
func (b *bucket) eachPart(ctx context.Context, key, id string, file io.ReaderAt, size int64) ([]minio.CompletePart, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	step := partSize(size)
	parts := make([]minio.CompletePart, (size+step-1)/step)
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(partThreads, len(parts)) {
		wg.Go(func() {
			buf := make([]byte, 256*kib)
			for i := range next {
				part, err := b.onePart(ctx, key, id, i+1, newSection(file, span{int64(i) * step, min(step, size-int64(i)*step)}), buf)
				if err != nil {
					cancel(err)
				}
				parts[i] = part
			}
		})
	}
	for i := range parts {
		if context.Cause(ctx) != nil {
			break
		}
		next <- i
	}
	close(next)
	wg.Wait()
	return parts, context.Cause(ctx)
}

func (b *bucket) onePart(ctx context.Context, key, id string, number int, part *io.SectionReader, buf []byte) (minio.CompletePart, error) {
	crc := newCRC64()
	if err := hashInto(ctx, crc, part, buf); err != nil {
		return minio.CompletePart{}, err
	}
	if _, err := part.Seek(0, io.SeekStart); err != nil {
		return minio.CompletePart{}, err
	}
	sum := encode(crc.Sum(nil))
	sent, err := b.core.PutObjectPart(ctx, b.source.Bucket, key, id, number, part, part.Size(),
		minio.PutObjectPartOptions{CustomHeader: http.Header{headerCRC64: {sum}}})
	return minio.CompletePart{PartNumber: number, ETag: sent.ETag, ChecksumCRC64NVME: sum}, err
}
