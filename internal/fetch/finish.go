package fetch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// complete is the JSON of the file .flexlvm/complete.
type complete struct {
	Source      string    `json:"source"`
	Endpoint    string    `json:"endpoint,omitempty"`
	Version     string    `json:"versionId,omitempty"`
	Name        string    `json:"name,omitempty"`
	Include     []string  `json:"include,omitempty"`
	Exclude     []string  `json:"exclude,omitempty"`
	Paths       []string  `json:"paths,omitempty"`
	Files       int64     `json:"files"`
	Bytes       int64     `json:"bytes"`
	Refused     int64     `json:"refused"`
	Gone        bool      `json:"gone,omitempty"`    // some were refused because the source did not have them when it was asked
	Retried     bool      `json:"retried,omitempty"` // an earlier run completed it except for refused keys
	Revision    string    `json:"revision,omitempty"`
	Contents    string    `json:"contents,omitempty"`
	CompletedAt time.Time `json:"completedAt"`
}

// readComplete reads such a file; nil if there is none. Any other error has to end a run, which would otherwise
// take the directory for a new one and replace files that were changed in it.
func readComplete(root *os.Root, name string) (*complete, error) {
	data, err := root.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	c := &complete{}
	if err == nil {
		if err = json.Unmarshal(data, c); err != nil {
			err = fmt.Errorf("%w; move files that were changed here elsewhere and remove %s, and the source is fetched again", err, name)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return c, nil
}

// selects reports whether b is the same selection.
func (c complete) selects(b complete) bool {
	return c.Source == b.Source && c.endpoint() == b.endpoint() && c.Version == b.Version && c.Name == b.Name && strings.Join(c.Include, "\x00") == strings.Join(b.Include, "\x00") &&
		slices.Equal(c.Paths, b.Paths) && strings.Join(c.Exclude, "\x00") == strings.Join(b.Exclude, "\x00")
}

// endpoint returns the server that the data come from. Hubs and registries name their content by
// hashes, so any mirror has the same.
func (c complete) endpoint() string {
	switch kind, _, _ := strings.Cut(c.Source, "://"); kind {
	case store.KindHub, store.KindOCI:
		return ""
	}
	return protocol.EndpointOf(c.Endpoint)
}

// removeGone removes fetched files that are no longer wanted, unless somebody changed them.
func (r *run) removeGone(gone []Entry) error {
	for _, e := range gone {
		changed, err := replaced(r.dest, e)
		switch {
		case err != nil:
			r.noteRefusal(Refusal{e.Path, "it is no longer selected, but could not be removed: " + err.Error()})
			continue
		case changed:
			r.noteRefusal(Refusal{e.Path, "it is no longer selected but was changed here, so it was not removed; remove it, or move it elsewhere"})
			continue
		}
		if err := r.journal.drop(e.Path); err != nil {
			return err
		}
		if err := r.dest.Remove(e.Path); err != nil {
			r.noteRefusal(Refusal{e.Path, "it is no longer selected, but could not be removed: " + err.Error()})
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
		Files: r.progress.filesDone.Load(), Bytes: r.progress.durable.Load(), Refused: int64(len(r.refused)), Gone: r.gone, Revision: r.revision,
	}
}

// finish marks the destination as complete.
func (r *run) finish(ctx context.Context) error {
	if r.Index {
		r.progress.set(protocol.StateFetching, "computing the SHA-256 of the fetched files")
	}
	if err := r.makeIndex(ctx); err != nil {
		return err
	}
	done := r.summary()
	done.Retried = r.retriesRefused // so that a later run does not replace what programs changed either
	var cleared errgroup.Group
	cleared.Go(r.dest.Clear)
	done.Contents = contentsOf(r.manifest.entries)
	if err := cleared.Wait(); err != nil {
		return err
	}
	data, err := json.Marshal(done)
	if err != nil {
		return err
	}
	if err := r.removeLayers(); err != nil {
		return err
	}
	if err := r.dest.ReplaceFile(destination.CompleteFile, append(data, '\n')); err != nil {
		return err
	}
	if err := r.dest.Root.Remove(destination.JournalFile); err != nil {
		return fmt.Errorf("remove %s: %w", destination.JournalFile, err)
	}
	message := fmt.Sprintf("complete: %s, %s", formatFiles(r.progress.filesDone.Load()), FormatBytes(r.progress.durable.Load()))
	r.progress.setContents(done.Contents)
	r.progress.set(protocol.StateComplete, message+r.refusals())
	return nil
}

// endComplete ends a run that has found the destination complete. If the run that completed it was killed before it
// removed the journal, the journal is removed here: otherwise an upload would take files that programs write later, with
// the content of objects that are gone since, for fetched ones. A record that runs keep while they work (see prepare) may
// be older than the journal, which an upload may then need.
func (r *run) endComplete(ctx context.Context) error {
	c, err := r.wasComplete()
	if err == nil && c != nil && c.Refused == 0 && !c.Retried {
		if err := r.dest.Root.Remove(destination.JournalFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove %s: %w", destination.JournalFile, err)
		}
	}
	return r.makeIndex(ctx)
}

// refusals returns what the message of a complete run says about refused keys; empty if there are none. Those that
// only an earlier run refused are not known by name.
func (r *run) refusals() string {
	n := r.progress.Refused()
	switch {
	case n == 0:
		return ""
	case len(r.refused) == 0:
		return fmt.Sprintf("; %d refused", n)
	}
	return fmt.Sprintf("; %d refused, the first: %s", n, r.refused[0])
}

func (r *run) arrived(bytes int64) { r.progress.arrived.Add(bytes) }
