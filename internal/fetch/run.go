package fetch

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// Config describes what to fetch, into which directory and how. A number that is zero means no limit,
// or a value chosen by the amount of work.
type Config struct {
	Source store.Source
	// Endpoint and Version belong to the source; here they only distinguish datasets.
	Endpoint, Version string
	Dest              string
	Store             store.Store
	// Include and Exclude are globs on paths. A glob without a slash matches base names.
	Include, Exclude []string
	// Paths are patterns of whole paths, see store.Selection.WithPaths. Elsewhere are the patterns of
	// other calls: objects that match neither are counted in the notes.
	Paths, Elsewhere []string
	// Sync lists the source even if the destination is complete, and removes files that were fetched
	// earlier and are no longer wanted.
	Sync bool
	// KeepChanged replaces nothing that was changed or created in the destination, see excludeChanged.
	KeepChanged bool
	// Parallel is the number of concurrent requests; 0 chooses.
	Parallel int
	// Memory bounds the bytes in flight, Bandwidth the bytes per second.
	Memory, Bandwidth int64
	// Order is OrderName, OrderSize or OrderList; OrderPaths is the list.
	Order      string
	OrderPaths []string
	// SkipSpaceCheck skips the check for free space.
	SkipSpaceCheck bool
	// Checksum is ChecksumRequired, ChecksumIfPresent (or empty) or ChecksumNone.
	Checksum string
	// Attempts is how often an object or a range is tried; at least once.
	Attempts int
	// Stall is how long a source may take for the next 64 KiB.
	Stall time.Duration
	// Index computes the SHA-256 of each file once all are fetched. Peers need it to copy them.
	Index bool
	Log   logrus.FieldLogger
	// base is the previous version, see RunVersions; nil if there is none.
	base *base
	// exclusive reports that only runs of fetch write to Dest, see RunVersions.
	exclusive bool
}

// maxFailures is how many objects in a row may fail before the run stops.
const maxFailures = 20

// run is one call of Run.
type run struct {
	Config
	dest      *destination.Dir
	selection store.Selection
	manifest  manifest
	journal   *journal
	// noted is what earlier runs have noted in the journal, by path, see isNoted; leftovers is the latest of it, without
	// what prepare has removed.
	noted     map[string][]*leftovers
	leftovers map[string]*leftovers
	progress  *Progress
	commit    *committer
	queue     *queue
	gate      *gate
	pool      *pool
	bandwidth *bandwidth
	stop      func(error)

	id string
	// retriesRefused: an earlier run has completed the same selection except for refused keys, see excludeChanged.
	retriesRefused bool
	// changedHere counts the files that excludeChanged leaves as they are.
	changedHere int64
	// revision is the source's revision; empty if it has none.
	revision string

	mu                  sync.Mutex
	refused             []Refusal
	gone                bool // an object was refused because the source did not have it when it was asked
	failures            []error
	consecutiveFailures int
	lastMismatch        map[string]string // the content that failed its check last, by path
	badETags            int64
}

// Run fills the destination and returns the refused keys. Its error is a *store.Error. Whatever it
// returns, the files in the manifest are on disk, and the next run resumes from them.
func Run(ctx context.Context, config Config, progress *Progress) ([]Refusal, error) {
	r := &run{Config: config, progress: progress, id: strconv.FormatUint(rand.Uint64(), 36), bandwidth: &bandwidth{perSecond: config.Bandwidth}}
	progress.resetVerified()
	err := r.run(ctx)
	if err != nil {
		err = failed(err)
		var e *store.Error
		progress.Fail(err.Error(), errors.As(err, &e) && e.Retryable)
	}
	return r.refused, err
}

// checkConfig sets r.selection, and checks the values that a person chooses.
func (r *run) checkConfig() (err error) {
	if r.selection, err = store.NewSelection(r.Include, r.Exclude); err != nil {
		return store.Usage(err)
	}
	r.selection = r.selection.WithPaths(r.Paths, r.Elsewhere)
	if err := sortObjects(nil, r.Order, nil); err != nil {
		return store.Usage(err)
	}
	if err := checkChecksum(r.Checksum); err != nil {
		return store.Usage(err)
	}
	return nil
}

func (r *run) run(ctx context.Context) error {
	err := r.checkConfig()
	if err != nil {
		return err
	}
	if r.dest, err = destination.Open(r.Dest); err != nil {
		return err
	}
	defer r.dest.Close()
	if r.manifest, err = openManifest(r.dest); err != nil {
		return err
	}
	defer r.manifest.Close()
	if done, err := r.isDone(); err != nil {
		return err
	} else if done {
		return r.endComplete(ctx)
	}
	if r.journal, r.noted, err = openJournal(r.dest); err != nil {
		return err
	}
	defer r.journal.log.Close()
	r.leftovers = make(map[string]*leftovers, len(r.noted))
	for path, all := range r.noted {
		r.leftovers[path] = latest(all)
	}
	switch done, err := r.unpack(ctx); {
	case err != nil:
		return err
	case done:
		return r.endComplete(ctx)
	}
	placed, err := r.list(ctx)
	if err != nil {
		return err
	}
	p, err := makePlan(placed.files, r.manifest.entries, r.trusts, func(e Entry) (bool, error) { return present(r.dest, e) })
	if err != nil {
		return err
	}
	if err := r.excludeChanged(&p); err != nil {
		return err
	}
	if unchanged, err := r.reuseUnchanged(&p, placed.files); unchanged || err != nil {
		return err
	}
	if err := sortObjects(p.fetch, r.Order, r.OrderPaths); err != nil {
		return err
	}
	return r.execute(ctx, p, placed)
}

// completeAlready reports whether the files of the earlier run that recorded c are still there. If so, it
// sets the progress to complete.
func (r *run) completeAlready(c complete) bool {
	total := int64(0)
	for _, e := range r.manifest.entries {
		if here, err := present(r.dest, e); err != nil || !here {
			return false
		}
		total += e.Bytes
	}
	r.setTotals(int64(len(r.manifest.entries)), total)
	for _, e := range r.manifest.entries {
		r.progress.countVerified(e.Check)
		r.progress.fileDone(e.Bytes)
	}
	r.progress.arrived.Add(total)
	r.progress.refused.Store(c.Refused)
	r.progress.setRevision(c.Revision)
	r.setComplete(c, len(r.manifest.entries), total)
	return true
}

// wasComplete returns the record of an earlier run that has completed the same selection; nil if there is
// none.
func (r *run) wasComplete() (*complete, error) {
	c, err := readComplete(r.dest.Root, destination.CompleteFile)
	if c == nil || !c.selects(r.summary()) {
		return nil, err
	}
	return c, nil
}

func (r *run) setTotals(files, bytes int64) {
	r.progress.filesTotal.Store(files)
	r.progress.bytesTotal.Store(bytes)
}

// execute executes the plan.
func (r *run) execute(ctx context.Context, p plan, listed placement) error {
	total := int64(0)
	for _, e := range p.keep {
		r.progress.countVerified(e.Check)
		total += e.Bytes
		r.progress.fileDone(e.Bytes)
	}
	r.progress.arrived.Add(total)
	for _, e := range p.link {
		total += e.Bytes
	}
	for _, o := range p.fetch {
		total += o.Size
	}
	r.setTotals(int64(len(p.keep)+len(p.link)+len(p.fetch)), total)
	if err := r.prepare(ctx, p, listed); err != nil {
		return err
	}
	r.progress.set(protocol.StateFetching, "")
	if err := r.link(ctx, p.link); err != nil {
		return err
	}
	if err := r.fetchAll(ctx, p.fetch); err != nil {
		return err
	}
	if err := r.rejectMismatches(ctx, listed.files); err != nil {
		return err
	}
	if len(r.failures) > 0 {
		return r.failure()
	}
	if err := r.requireUnchanged(ctx, listed.files); err != nil {
		return err
	}
	return r.finish(ctx)
}

// prepare readies the destination for the plan: it removes leftovers and unwanted files, checks the
// free space, and marks the destination as incomplete.
func (r *run) prepare(ctx context.Context, p plan, listed placement) error {
	keep := make(map[string]bool)
	for _, o := range p.fetch {
		if left := r.leftovers[o.Path].of(o); left != nil {
			keep[left.temp] = true
		} else {
			delete(r.leftovers, o.Path)
		}
	}
	swept, err := r.dest.Sweep(keep)
	if err != nil {
		return err
	}
	stray, err := r.removeStray(listed)
	if err != nil {
		return err
	}
	if !r.SkipSpaceCheck {
		if err := r.requireSpace(ctx, p, swept+stray > 0); err != nil {
			return err
		}
	}
	if !r.retriesRefused { // otherwise a later run has to know, too, that this one was not the first
		if err := r.dest.Remove(destination.CompleteFile); err != nil {
			return err
		}
	}
	if err := r.dest.Sync(); err != nil {
		return err
	}
	if r.Sync {
		if err := r.removeGone(p.gone); err != nil {
			return err
		}
	}
	for _, dir := range listed.dirs {
		if err := r.dest.Mkdir(dir); err != nil {
			r.noteRefusal(Refusal{dir + "/", err.Error()})
		}
	}
	return nil
}

const (
	// spaceReleaseTimeout is how long the space of removed files may take to become free: XFS frees it in the
	// background. For 200 files that took some milliseconds (seen with statfs on Linux 6.1); a busy disk
	// may take longer.
	spaceReleaseTimeout = 10 * time.Second
	// othersReleaseTimeout is the same for files that another process may have removed just before.
	othersReleaseTimeout = time.Second
)

// requireSpace returns an error if the plan does not fit. It waits until the space of files that were just removed is
// free: longer if this run has removed files (swept).
func (r *run) requireSpace(ctx context.Context, p plan, swept bool) error {
	timeout := othersReleaseTimeout
	if swept {
		timeout = spaceReleaseTimeout
	}
	for end := time.Now().Add(timeout); ; {
		free, block, err := freeSpace(r.dest)
		if err != nil {
			return err
		}
		workers, _ := r.buffers(p.fetch)
		err = checkSpace(p.spaceNeeded(block, r.alreadyStored, r.Sync).plus(p.ownSpace(workers, r.alreadyStored)), free)
		if err == nil || time.Now().After(end) {
			return err
		}
		if err := store.Wait(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// alreadyStored returns how much space an object already takes that an earlier run began. The space of a large
// object is allocated before its bytes arrive.
func (r *run) alreadyStored(o store.Object) int64 {
	left := r.leftovers[o.Path]
	if left == nil {
		return 0
	}
	return max(left.bytes(), min(r.dest.AllocatedBytes(left.temp), o.Size))
}

// fetchAll runs the workers and the committer until all objects are done or an error stops the run.
func (r *run) fetchAll(ctx context.Context, objects []store.Object) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r.stop = func(err error) { cancel(err) }
	r.queue = newQueue(objects)
	defer context.AfterFunc(ctx, r.queue.stop)()
	r.commit = &committer{dest: r.dest, manifest: r.manifest, progress: r.progress, now: time.Now, refuse: r.refuseArrived}
	if r.keepsChanged() {
		uncancelled := context.WithoutCancel(ctx) // the committer still names what was received before ctx ended
		r.commit.checkReplaceable = func(o store.Object) (pathState, error) { return r.checkReplaceable(uncancelled, o) }
	}
	r.commit.start(r.stop)

	workers, size := r.buffers(objects)
	r.gate, r.pool = newGate(workers), newPool(r.Memory, workers, size)
	var wg sync.WaitGroup
	for i := range workers {
		w := &worker{run: r, buf: destination.NewBuffer(size), subdir: strconv.Itoa(i)}
		if _, err := r.dest.TempSubdir(w.subdir); err != nil {
			r.stop(err)
			break
		}
		wg.Go(func() { w.work(ctx) })
	}
	wg.Wait()
	why := context.Cause(ctx)
	if err := r.commit.finish(); err != nil {
		return err
	}
	return why
}

// buffers returns the number of workers for the objects and the size of each worker's buffer.
func (r *run) buffers(objects []store.Object) (workers int, size int64) {
	count := chooseParallel(r.Parallel, objects)
	if r.Parallel == 0 {
		count = r.bandwidth.limitRequests(count)
	}
	return buffers(r.Memory, count)
}
