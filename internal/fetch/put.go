package fetch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"

	"github.com/flexlvm/flexlvm/internal/fetch/dirstore"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/fetch/s3store"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// PutConfig describes what to upload, and to which target.
type PutConfig struct {
	// Dir is the directory whose regular files are uploaded; .flexlvm at its top is skipped, and links
	// are refused.
	Dir string
	// Target is an s3:// or pachyderm:// URL; objects of the same names below it are
	// overwritten, and nothing is removed.
	Target store.Source
	// Back reports that Target is the source from which the directory was filled. The objects of files
	// that are unchanged since they were fetched, or sent last, stay as they are.
	Back bool
	S3   s3store.Config
	// Parallel is how many files are uploaded concurrently; 0 chooses. Memory bounds the bytes in
	// flight.
	Parallel int
	Memory   int64
	Log      logrus.FieldLogger
}

// upload is the state of one call of Put, or of a mirror.
type upload struct {
	PutConfig
	local    *dirstore.Directory
	remote   *s3store.Bucket
	prefix   string
	progress *Progress
	// fetched is the manifest of the fetched files, with Back; nil without a manifest.
	fetched map[string]Entry
	// onVerified is called with each file that the target is known to have; may be nil.
	onVerified func(store.Object)
	targetID   string // names the target in sentFile
	// received are the notes of a load about objects that it received after those that the manifest describes, with
	// Back, by path; one element for each object.
	received map[string][]*leftovers
	// journalDamaged: the load's journal could not be read, or not all of it.
	journalDamaged bool

	mu       sync.Mutex
	refused  []Refusal
	failures []error
	sent     map[string]sentRecord // notes about sent files, by path
	compared map[string]comparison // by path

	sentMu          sync.Mutex // to be locked before mu
	sentLines       int        // in sentFile
	sentFileDurable bool       // sentFile's name is durable
}

// Put uploads a directory and verifies what the server then has: by its CRC64NVME if the server
// provides one, else by the ETag. Files that the server already has with the same content are not sent
// again, so an interrupted upload is resumed. Files that change meanwhile cause a retryable error.
// Put's error is a *store.Error.
func Put(ctx context.Context, config PutConfig, progress *Progress) ([]Refusal, error) {
	u := &upload{PutConfig: config, progress: progress}
	err := u.put(ctx)
	if err != nil {
		err = failed(err)
		var e *store.Error
		progress.Fail(err.Error(), errors.As(err, &e) && e.Retryable)
	}
	return u.refused, err
}

func (u *upload) put(ctx context.Context) error {
	files, total, err := u.open(ctx)
	if err != nil {
		return err
	}
	u.progress.filesTotal.Store(int64(len(files)))
	u.progress.bytesTotal.Store(total)
	u.progress.set(protocol.StateFetching, "")
	uploaded := make(map[string]string, len(files))
	u.onVerified = func(o store.Object) {
		u.mu.Lock()
		defer u.mu.Unlock()
		uploaded[o.Path] = o.ETag
	}
	if err := u.sendAll(ctx, files); err != nil {
		return err
	}
	if len(u.failures) == 0 {
		if err := u.requireUploaded(ctx, uploaded); err != nil {
			return err
		}
	}
	return u.end(len(files))
}

// sendAll uploads many files concurrently. Errors of single files are in failures.
func (u *upload) sendAll(ctx context.Context, files []store.Object) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	queue := make(chan store.Object)
	// The client buffers one part per upload thread, and a worker has one thread.
	workers := min(chooseParallel(u.Parallel, files), max(1, int(u.Memory/s3store.UploadPart)))
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			buf := make([]byte, maxBuffer)
			for o := range queue {
				if err := u.uploadFile(ctx, o, buf); store.Classify(err) == store.Fatal && !isLocal(err) {
					cancel(err)
				}
			}
		})
	}
	for _, o := range files {
		select {
		case queue <- o:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(queue)
	wg.Wait()
	return context.Cause(ctx)
}

// open connects, and lists the files.
func (u *upload) open(ctx context.Context) (files []store.Object, total int64, err error) {
	if err := u.connect(ctx); err != nil {
		return nil, 0, err
	}
	return u.list(ctx)
}

// connect opens the directory and the target without sending anything.
func (u *upload) connect(ctx context.Context) error {
	if err := u.connectLocal(ctx); err != nil {
		return err
	}
	var err error
	if !slices.Contains([]string{store.KindS3, store.KindPachyderm}, u.Target.Kind) || u.Target.Glob != nil && !u.Back {
		return store.Usage(fmt.Errorf("target %q is not of the form s3://bucket/prefix", u.Target.URL))
	}
	u.prefix = u.Target.Key
	if u.Back {
		u.prefix = u.Target.Prefix
		if u.fetched, err = manifestIn(u.Dir); err != nil {
			return err
		}
		u.readReceived()
	}
	if u.prefix != "" && !strings.HasSuffix(u.prefix, "/") {
		u.prefix += "/"
	}
	if u.Back {
		if err := u.openSent(); err != nil {
			return err
		}
	}
	remote, err := s3store.New(u.Target, u.S3)
	if err != nil {
		return err
	}
	u.remote = remote.(*s3store.Bucket)
	return nil
}

// connectLocal opens the directory.
func (u *upload) connectLocal(ctx context.Context) error {
	defer store.TrackCall(ctx, "opening", u.Dir)()
	dir, err := filepath.Abs(u.Dir)
	if err != nil {
		return err
	}
	u.local, err = dirstore.Open(dir)
	return err
}

// list lists the files.
func (u *upload) list(ctx context.Context) (files []store.Object, total int64, err error) {
	err = u.local.ListRest(ctx, func(o store.Object) error {
		o.Path = u.local.Name(o.Key)
		if o.Unfetchable != "" {
			u.refused = append(u.refused, Refusal{o.Path, o.Unfetchable})
			u.progress.refused.Add(1)
			return nil
		}
		files = append(files, o)
		total += o.Size
		return nil
	})
	return files, total, err
}

func (u *upload) end(files int) error {
	if len(u.failures) > 0 {
		retry := true
		for _, err := range u.failures {
			var one *store.Error
			retry = retry && (errors.As(failed(err), &one) && one.Retryable || isLocal(err) && errors.Is(err, store.ErrGone))
		}
		return &store.Error{Retryable: retry, Err: fmt.Errorf("%d of %s could not be uploaded, the first: %w", len(u.failures), formatFiles(files), u.failures[0])}
	}
	message := fmt.Sprintf("complete: %s, %s uploaded and verified", formatFiles(files), FormatBytes(u.progress.durable.Load()))
	if n := len(u.refused); n > 0 {
		message += fmt.Sprintf("; %d refused, the first: %s", n, u.refused[0])
	}
	u.progress.set(protocol.StateComplete, message)
	return nil
}

// uploadFile uploads one file, and retries where that may help.
func (u *upload) uploadFile(ctx context.Context, o store.Object, buf []byte) error {
	var err error
	for n := 1; n <= u.S3.Attempts; n++ {
		if err = u.uploadOnce(ctx, o, buf); err == nil {
			u.progress.arrived.Add(o.Size)
			u.progress.fileDone(o.Size)
			if u.onVerified != nil {
				u.onVerified(o)
			}
			return nil
		}
		if context.Cause(ctx) != nil {
			return err
		}
		if c := store.Classify(err); c != store.Transient && c != store.Changed {
			break
		}
		u.Log.WithError(err).WithField("path", o.Path).Warn("Uploading failed; it is retried")
		if store.Wait(ctx, store.BackoffDelay(n, rand.Float64())) != nil {
			return err
		}
		if now, _, statErr := u.local.Stat(ctx, o.Key, ""); statErr == nil && now.Unfetchable == "" {
			o.Size, o.ETag = now.Size, now.ETag
		}
	}
	err = fmt.Errorf("upload %q: %w", o.Path, err)
	u.mu.Lock()
	u.failures = append(u.failures, err)
	u.mu.Unlock()
	return err
}

// uploadOnce uploads a file unless the target has the same content, and verifies it.
func (u *upload) uploadOnce(ctx context.Context, o store.Object, buf []byte) error {
	key := u.prefix + o.Path
	stream, err := u.local.Open(ctx, o, store.Span{Offset: 0, Length: o.Size})
	if err != nil {
		return asLocal(err)
	}
	defer func() { _ = stream.Body.Close() }()
	file := pinned{stream.Body.(*dirstore.Pinned)}
	crc := store.NewCRC64()
	if err := store.HashInto(ctx, crc, io.NewSectionReader(file, 0, o.Size), buf); err != nil {
		return err
	}
	from, err := u.origin(ctx, o, file, crc.Sum(nil), buf)
	if from == originFetched || err != nil {
		return errors.Join(err, file.Check())
	}
	there, err := u.compareTarget(ctx, o, key, file, from, crc.Sum(nil), buf)
	if there.same {
		u.compare(o, there.object, true)
		u.noteSame(o.Path, crc.Sum(nil))
		return file.Check()
	}
	if from == originSent && err == nil {
		return file.Check() // somebody else has written the object since
	}
	if err := u.checkSend(ctx, o, file, from, there, err, buf); err != nil {
		return err
	}
	if err := u.noteSending(o.Path); err != nil {
		return err
	}
	if err := u.remote.Upload(ctx, key, file, o.Size, crc.Sum(nil)); err != nil {
		return err
	}
	if err := file.Check(); err != nil {
		return err
	}
	if err := u.verify(ctx, o, key, file, crc.Sum(nil), buf); err != nil {
		return err
	}
	u.noteVerified(o.Path, crc.Sum(nil))
	return nil
}

// verify compares the server's object with the file. An ETag that does not match proves nothing, as it
// need not be a hash: then the content itself is read.
func (u *upload) verify(ctx context.Context, o store.Object, key string, file pinned, crc []byte, buf []byte) error {
	there, sums, err := u.remote.Verify(ctx, key, o.Size)
	if err != nil {
		return fmt.Errorf("check what was uploaded: %w", err)
	}
	if there.Size != o.Size {
		return fmt.Errorf("%w: the server has %d bytes of %d", store.ErrChecksum, there.Size, o.Size)
	}
	sums.PartSize = s3store.PartSize(o.Size)
	switch c := store.ChooseCheck(sums, there.ETag); {
	case c.Kind == store.CheckCRC64:
		return c.Verify(crc)
	case c.Kind == store.CheckComposite:
		ours := func(context.Context, int) ([]int64, error) { return nil, nil } // the parts are of a known size
		known, err := c.VerifyComposite(ctx, file, o.Size, buf, ours)
		if known && err == nil || err != nil && !errors.Is(err, store.ErrChecksum) {
			return err
		}
	case c.Streams():
		h := c.Hasher()
		if err := store.HashInto(ctx, h, io.NewSectionReader(file, 0, o.Size), buf); err != nil {
			return err
		}
		if err := c.Verify(h.Sum(nil)); err == nil || c.Kind != store.CheckMD5 {
			return err
		}
	}
	return u.readBack(ctx, there, crc, buf)
}

// readBack verifies an object that has no usable checksum by reading it. The directory may be deleted
// on the strength of the result.
func (u *upload) readBack(ctx context.Context, o store.Object, crc, buf []byte) error {
	ctx, watchdog, stop := store.WatchStall(ctx, u.S3.Stall)
	defer stop()
	stream, err := u.remote.Open(ctx, o, store.Span{Offset: 0, Length: o.Size})
	if err != nil {
		return fmt.Errorf("read back what was uploaded: %w", store.Cause(ctx, err))
	}
	defer func() { _ = stream.Body.Close() }() // it was only read
	h := store.NewCRC64()
	err = store.HashInto(ctx, h, watchdog.Feed(stream.Body), buf)
	switch {
	case err != nil:
		return fmt.Errorf("read back what was uploaded: %w", store.Cause(ctx, err))
	case !bytes.Equal(h.Sum(nil), crc):
		return fmt.Errorf("%w: the uploaded object's content differs from the file", store.ErrChecksum)
	}
	return nil
}
