package fetch

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
)

// removeGone removes files that were fetched once and are wanted no longer, unless
// somebody changed them.
func (r *run) removeGone(gone []Entry) error {
	for _, e := range gone {
		changed, err := replaced(r.dest, e)
		switch {
		case err != nil:
			r.note(Refusal{e.Path, "it is not wanted any more and was not removed: " + err.Error()})
			continue
		case changed:
			r.note(Refusal{e.Path, "it is not wanted any more and was changed here, so it was not removed; remove it, or move it elsewhere"})
			continue
		}
		if err := r.dest.Remove(e.Path); err != nil {
			r.note(Refusal{e.Path, "it is not wanted any more and was not removed: " + err.Error()})
			continue
		}
		if err := r.manifest.append(Entry{Path: e.Path, FetchedAt: time.Now().UTC(), Deleted: true}); err != nil {
			return err
		}
		r.Log.WithField("path", e.Path).Info("Removed a file whose object is gone")
	}
	return nil
}

func (r *run) summary() complete {
	return complete{
		Source: r.Source.URL, Endpoint: r.Endpoint, Version: r.Version, Name: r.Source.Name, Include: r.Include, Exclude: r.Exclude, Paths: r.Paths, CompletedAt: time.Now().UTC(),
		Files: r.progress.filesDone.Load(), Bytes: r.progress.durable.Load(), Refused: int64(len(r.refused)),
	}
}

// finish says that all is there, once it is.
func (r *run) finish() error {
	data, err := json.Marshal(r.summary())
	if err != nil {
		return err
	}
	if err := r.dest.Clear(); err != nil {
		return err
	}
	if err := r.dest.WriteWhole(destination.CompleteFile, append(data, '\n')); err != nil {
		return err
	}
	if err := r.dest.Root.Remove(destination.JournalFile); err != nil {
		return fmt.Errorf("remove %s: %w", destination.JournalFile, err)
	}
	message := fmt.Sprintf("complete: %d files, %s", r.progress.filesDone.Load(), Human(r.progress.durable.Load()))
	if n := len(r.refused); n > 0 {
		message += fmt.Sprintf("; %d refused, the first: %s", n, r.refused[0])
	}
	r.progress.set(protocol.StateComplete, message)
	return nil
}

func (r *run) arrived(bytes int64) { r.progress.arrived.Add(bytes) }
