package fetch

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// fail records that an object could not be fetched. The other objects are still fetched, unless the error affects all of
// them, or too many have failed in a row.
func (r *run) fail(o store.Object, err error) {
	switch c := store.Classify(err); {
	case c == store.Fatal:
		r.stop(err)
	case c == store.Gone && r.willRelist(o):
		r.failedOne(o, store.Failure(fmt.Errorf("the source lists it but does not have it: it was deleted meanwhile, or the listing is wrong; in that case add it to `exclude`: %w", err), true))
	case c == store.Gone, errors.Is(err, store.ErrInTheWay):
		r.refuse(o, err)
	default:
		r.failedOne(o, err)
		r.mu.Lock()
		r.consecutiveFailures++
		tooMany := r.consecutiveFailures >= maxFailures
		r.mu.Unlock()
		if tooMany {
			r.stop(fmt.Errorf("%d objects failed in a row, the last: %w", maxFailures, err))
		}
	}
}

// willRelist reports whether the next run will list the source again, and so no longer list an object
// that is gone. It will not if one state of the source was requested, nor for a key that is not UTF-8,
// which a listing cannot name.
func (r *run) willRelist(o store.Object) bool {
	return r.revision == "" && r.Version == "" && !strings.ContainsRune(o.Key, utf8.RuneError)
}

// failedOne records the failure of an object as a failure of the run.
func (r *run) failedOne(o store.Object, err error) {
	r.mu.Lock()
	r.failures = append(r.failures, err)
	r.mu.Unlock()
	r.Log.WithError(err).WithField("key", o.Key).Error("An object could not be fetched")
}

// received passes a file to the committer.
func (r *run) received(ctx context.Context, f finished) {
	r.mu.Lock()
	r.consecutiveFailures = 0
	r.mu.Unlock()
	r.progress.countVerified(f.entry.Check)
	r.commit.add(ctx, f)
}

// refuse records that an object will not become a file.
func (r *run) refuse(o store.Object, err error) {
	r.progress.filesTotal.Add(-1)
	r.progress.bytesTotal.Add(-o.Size)
	if store.Classify(err) == store.Gone {
		r.mu.Lock()
		r.gone = true
		r.mu.Unlock()
	}
	r.noteRefusal(Refusal{o.Key, err.Error()})
}

// refuseArrived refuses an object that was received already.
func (r *run) refuseArrived(o store.Object, err error) {
	r.arrived(-o.Size)
	r.refuse(o, err)
	if err := r.journal.drop(o.Path); err != nil {
		r.stop(err)
	}
}

func (r *run) noteRefusal(refusal Refusal) {
	r.mu.Lock()
	r.refused = append(r.refused, refusal)
	r.mu.Unlock()
	r.progress.refused.Add(1)
	r.Log.WithField("key", refusal.Key).Warn("Refused: " + refusal.Reason)
}

// failure returns the error of a run in which some objects failed. It is retryable only if each of
// their errors is.
func (r *run) failure() error {
	sort.Slice(r.failures, func(i, j int) bool { return r.failures[i].Error() < r.failures[j].Error() })
	out := &store.Error{Retryable: true}
	for _, err := range r.failures {
		var one *store.Error
		errors.As(failed(err), &one)
		out.Retryable = out.Retryable && one.Retryable
	}
	out.Err = fmt.Errorf("%d of %s could not be fetched, the first: %w", len(r.failures), formatFiles(r.progress.filesTotal.Load()), r.failures[0])
	return out
}

// failed returns the error of a run for its cause.
func failed(err error) error {
	var already *store.Error
	if err == nil || errors.As(err, &already) {
		return err
	}
	var noSpace *noSpaceError
	if (errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)) && !errors.As(err, &noSpace) {
		err = fmt.Errorf("the destination has no room left; make the volume larger or select less: %w", err)
	}
	retry := store.Classify(err) == store.Transient && !errors.Is(err, store.ErrChecksum) || store.Classify(err) == store.Changed
	return &store.Error{Retryable: retry, Err: err}
}
