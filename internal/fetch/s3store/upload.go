package s3store

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// S3 headers for the checksum of an upload.
const (
	HeaderCRC64     = "X-Amz-Checksum-Crc64nvme"
	headerAlgorithm = "X-Amz-Checksum-Algorithm"
	HeaderType      = "X-Amz-Checksum-Type"
)

// abortTimeout bounds how long a hanging server delays the end of a failed upload.
const abortTimeout = 10 * time.Second

// partThreads is how many parts of one file are sent concurrently.
const partThreads = 4

// readingPace is the least speed, in bytes per second, at which a server is assumed to read or copy an
// object before it responds.
const readingPace = 16 * store.MiB

// request makes a request of an upload, under a watchdog. Once everything is sent, the server has more
// time: it may first read all of size bytes. send receives a reader of part, which may be nil.
func (b *Bucket) request(ctx context.Context, size int64, part *io.SectionReader, send func(context.Context, io.Reader) error) error {
	ctx, watchdog, stop := store.WatchStall(ctx, b.config.Stall)
	defer stop()
	s := &sending{watchdog: watchdog, timeout: b.config.AnswerTimeout + time.Duration(size/readingPace)*time.Second, part: part}
	if part != nil {
		s.left = part.Size()
	}
	s.sent(0)
	return store.Cause(ctx, send(ctx, s))
}

// sending is a reader of the part to send, which feeds the watchdog.
type sending struct {
	part     *io.SectionReader
	left     int64
	watchdog *store.Watchdog
	timeout  time.Duration
}

func (s *sending) Read(p []byte) (int, error) {
	n, err := s.part.Read(p)
	s.sent(int64(n))
	return n, err
}

func (s *sending) sent(n int64) {
	s.watchdog.Seen(n)
	if s.left -= n; s.left <= 0 {
		s.watchdog.Await(s.timeout)
	}
}

// Verify is Stat with enough time for the server to read the object of size bytes first.
func (b *Bucket) Verify(ctx context.Context, key string, size int64) (o store.Object, sums store.Sums, err error) {
	err = b.request(ctx, size, nil, func(ctx context.Context, _ io.Reader) error {
		o, sums, err = b.Stat(ctx, key, "")
		return err
	})
	return o, sums, err
}

// Upload uploads a file whose CRC64NVME is known, in one request or in parts. The server
// rejects anything that does not match.
func (b *Bucket) Upload(ctx context.Context, key string, file io.ReaderAt, size int64, crc []byte) error {
	if size > UploadPart {
		return b.sendParts(ctx, key, file, size, crc)
	}
	how := minio.PutObjectOptions{UserMetadata: map[string]string{HeaderCRC64: store.Encode(crc)}}
	sum := ""
	if size == 0 {
		// The client would sign the end of an empty body chunk by chunk, and send it without a
		// Content-Length, which S3 requires. Servers that do not read such a body to its end treat the
		// rest as the next request, and answer that with 400.
		how.DisableContentSha256, sum = true, fmt.Sprintf("%x", sha256.Sum256(nil))
	}
	return b.request(ctx, size, io.NewSectionReader(file, 0, size), func(ctx context.Context, body io.Reader) error {
		_, err := b.client.now().PutObject(ctx, b.source.Bucket, key, body, size, "", sum, how)
		return withAdvice(err)
	})
}

func (b *Bucket) sendParts(ctx context.Context, key string, file io.ReaderAt, size int64, crc []byte) error {
	id, err := b.beginParts(ctx, key)
	if err != nil {
		return err
	}
	parts, err := b.eachPart(ctx, key, id, file, size)
	if err == nil {
		err = b.request(ctx, size, nil, func(ctx context.Context, _ io.Reader) error {
			_, err := b.client.now().CompleteMultipartUpload(ctx, b.source.Bucket, key, id, parts, minio.PutObjectOptions{UserMetadata: map[string]string{
				HeaderCRC64: store.Encode(crc), HeaderType: minio.ChecksumFullObjectMode.String(),
			}})
			return withAdvice(err)
		})
	}
	if err != nil {
		// Otherwise the sent parts would be charged forever. The context may have ended.
		last, stop := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
		defer stop()
		if abortErr := b.client.now().AbortMultipartUpload(last, b.source.Bucket, key, id); abortErr != nil {
			err = fmt.Errorf("%w (and the parts already sent could not be removed from the server: %w)", err, abortErr)
		}
	}
	return err
}

// beginParts begins a multipart upload, and returns its ID.
func (b *Bucket) beginParts(ctx context.Context, key string) (id string, err error) {
	err = b.request(ctx, 0, nil, func(ctx context.Context, _ io.Reader) error {
		id, err = b.client.now().NewMultipartUpload(ctx, b.source.Bucket, key, minio.PutObjectOptions{UserMetadata: map[string]string{
			headerAlgorithm: minio.ChecksumCRC64NVME.String(), HeaderType: minio.ChecksumFullObjectMode.String(),
		}})
		return withAdvice(err)
	})
	return id, err
}

// eachPart sends all parts, several concurrently.
func (b *Bucket) eachPart(ctx context.Context, key, id string, file io.ReaderAt, size int64) ([]minio.CompletePart, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	step := PartSize(size)
	parts := make([]minio.CompletePart, (size+step-1)/step)
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(partThreads, len(parts)) {
		wg.Go(func() {
			buf := make([]byte, 256*store.KiB)
			for i := range next {
				part, err := b.onePart(ctx, key, id, i+1, store.NewSection(file, store.Span{Offset: int64(i) * step, Length: min(step, size-int64(i)*step)}), buf)
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

func (b *Bucket) onePart(ctx context.Context, key, id string, number int, part *io.SectionReader, buf []byte) (minio.CompletePart, error) {
	crc := store.NewCRC64()
	if err := store.HashInto(ctx, crc, part, buf); err != nil {
		return minio.CompletePart{}, err
	}
	if _, err := part.Seek(0, io.SeekStart); err != nil {
		return minio.CompletePart{}, err
	}
	done := minio.CompletePart{PartNumber: number, ChecksumCRC64NVME: store.Encode(crc.Sum(nil))}
	err := b.request(ctx, part.Size(), part, func(ctx context.Context, body io.Reader) error {
		sent, err := b.client.now().PutObjectPart(ctx, b.source.Bucket, key, id, number, body, part.Size(),
			minio.PutObjectPartOptions{CustomHeader: http.Header{HeaderCRC64: {done.ChecksumCRC64NVME}}})
		done.ETag = sent.ETag
		return withAdvice(err)
	})
	return done, err
}

// UploadPart is the part size of multipart uploads, in bytes. Large files get larger
// parts: S3 allows 10,000.
const UploadPart = 16 * store.MiB

// PartSize returns the part size, in bytes, for uploading a file of size bytes.
func PartSize(size int64) int64 {
	return max(UploadPart, (size/9000+store.MiB-1)/store.MiB*store.MiB)
}
