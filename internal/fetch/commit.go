package fetch

import (
	"context"
	"fmt"
	"os"
	"path"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// The committer closes a batch when it holds this many files or bytes, or reaches this age.
const (
	batchFiles = 5000
	batchBytes = 256 * store.MiB
	batchAge   = time.Second
)

// unpublishedBytes bounds the bytes of received files that do not have their name yet: one batch that is
// synced, and one that workers fill meanwhile.
const unpublishedBytes = 2 * batchBytes

// unpublishedFiles bounds the received files that do not have their name yet: a batch that is synced, and
// twice as many that wait for it.
const unpublishedFiles = 3 * batchFiles

// finished is a file that was received and verified.
type finished struct {
	object store.Object
	entry  Entry
	// temp is its temporary file; empty if the file already has its name.
	temp string
}

// committer makes files durable, many at a time, because a sync costs far more than a small file. A
// file goes through two syncs: the first makes its content durable, and only then it gets its name; the
// second makes the name durable, and only then it gets its line in the manifest. The second sync of one
// batch is the first one of the next.
//
// Killed at any instant, it loses nothing: the journal leads to files without a name, and to files with
// a name that are not in the manifest.
type committer struct {
	dest     *destination.Dir
	manifest manifest
	progress *Progress
	now      func() time.Time
	// refuse is called for files that cannot get their name.
	refuse func(store.Object, error)
	// checkReplaceable returns pathEmpty or pathFetched, as the path of a file is; it fails if the file may not get its
	// name. nil: files replace what is there.
	checkReplaceable func(store.Object) (pathState, error)

	unpublished *semaphore.Weighted // bytes
	in          chan finished
	done        chan struct{}
	err         error

	written, published []finished
	bytes              int64
}

// start starts the committer. It calls stop with the error that ends it early.
func (c *committer) start(stop func(error)) {
	c.unpublished = semaphore.NewWeighted(unpublishedBytes)
	c.in = make(chan finished, unpublishedFiles-batchFiles)
	c.done = make(chan struct{})
	go func() {
		defer close(c.done)
		if c.err = c.loop(); c.err != nil {
			stop(c.err)
			for range c.in { // workers must not block until they see the end
				continue
			}
		}
	}()
}

// add receives a file from a worker, and blocks while too many bytes have no name yet. A file that
// comes after the end of ctx stays where it is.
func (c *committer) add(ctx context.Context, f finished) {
	if c.unpublished.Acquire(ctx, f.weight()) == nil {
		c.in <- f
	}
}

// weight is the file's share of unpublishedBytes, capped at all of it.
func (f finished) weight() int64 { return min(f.entry.Bytes, unpublishedBytes) }

func (c *committer) loop() error {
	ticker := time.NewTicker(batchAge)
	defer ticker.Stop()
	for {
		select {
		case f, more := <-c.in:
			if !more {
				return c.drain()
			}
			c.written = append(c.written, f)
			c.bytes += f.entry.Bytes
			if len(c.written) < batchFiles && c.bytes < batchBytes {
				continue
			}
		case <-ticker.C:
		}
		if err := c.flush(); err != nil {
			return err
		}
	}
}

// finish waits until all files passed to the committer are in the manifest.
func (c *committer) finish() error {
	close(c.in)
	<-c.done
	return c.err
}

func (c *committer) drain() error {
	for len(c.written)+len(c.published) > 0 {
		if err := c.flush(); err != nil {
			return err
		}
	}
	return nil
}

// flush syncs, and advances every file by one step.
func (c *committer) flush() error {
	if len(c.written)+len(c.published) == 0 {
		return nil
	}
	if err := c.dest.Sync(); err != nil {
		return err
	}
	if err := c.record(c.published); err != nil {
		return err
	}
	c.published = c.published[:0]
	if err := c.publish(c.written); err != nil {
		return err
	}
	c.written, c.bytes = c.written[:0], 0
	return nil
}

// openDirs bounds how many directories are open while files get their names.
const openDirs = 128

// publish gives files their names. Each directory is opened once for many files.
func (c *committer) publish(files []finished) error {
	dirs := make(map[string]*os.File)
	defer func() { closeAll(dirs) }()
	for _, f := range files {
		err := c.publishOne(f, dirs)
		c.unpublished.Release(f.weight())
		switch {
		case err == nil:
			c.published = append(c.published, f)
		case store.Classify(err) == store.Denied:
			c.refuse(f.object, err)
		default:
			return fmt.Errorf("name %s: %w", f.entry.Path, err)
		}
	}
	return nil
}

func (c *committer) publishOne(f finished, dirs map[string]*os.File) (err error) {
	if f.temp == "" {
		return nil
	}
	above := destination.Parent(f.entry.Path)
	dir := dirs[above]
	if dir == nil {
		if len(dirs) >= openDirs {
			closeAll(dirs)
		}
		if dir, err = c.dest.OpenDir(above); err != nil {
			return err
		}
		dirs[above] = dir
	}
	state := pathFetched
	if c.checkReplaceable != nil { // checked as late as possible: much may have changed while the object was fetched
		if state, err = c.checkReplaceable(f.object); err != nil {
			return err
		}
	}
	if state == pathEmpty {
		return c.dest.PublishNew(f.temp, dir, path.Base(f.entry.Path))
	}
	return c.dest.Publish(f.temp, dir, path.Base(f.entry.Path))
}

func closeAll(dirs map[string]*os.File) {
	for name, dir := range dirs {
		_ = dir.Close()
		delete(dirs, name)
	}
}

// record appends files to the manifest.
func (c *committer) record(files []finished) error {
	if len(files) == 0 {
		return nil
	}
	entries := make([]Entry, len(files))
	now := c.now().UTC()
	for i := range files {
		entries[i] = files[i].entry
		entries[i].FetchedAt = now
	}
	if err := c.manifest.append(entries...); err != nil {
		return err
	}
	for _, f := range files {
		c.progress.fileDone(f.entry.Bytes)
	}
	return nil
}
