package fetch

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
)

// ReadyAfter defines when a destination is usable: after a number of files or of bytes on disk. The
// zero value means when it is complete.
type ReadyAfter struct{ Files, Bytes int64 }

// rateWindow is the period over which the rate is measured.
const rateWindow = 15 * time.Second

type sample struct {
	at    time.Time
	bytes int64
}

// Progress holds the counters of a run. It may be read while the run goes on.
type Progress struct {
	after ReadyAfter

	filesDone, filesTotal, bytesTotal, refused atomic.Int64
	arrived                                    atomic.Int64 // bytes received, or there before
	durable                                    atomic.Int64 // bytes of files that are in the manifest
	ready                                      atomic.Bool
	// held: readers do not get the fetched files yet, see versions.next.
	held        atomic.Bool
	oldVersions atomic.Int64

	mu        sync.Mutex
	state     string
	message   string
	retryable bool
	samples   []sample
	notes     []string
	id, run   string
	checks    map[string]int64 // files, by the kind of their check
	revision  string
	index     string
	contents  string
	passes    atomic.Int64
	// requestedFinal is the last requested final upload that no pass has picked up yet, and final the last one
	// that is done.
	requestedFinal, final string
	// inner is the progress of a run that this one waits for.
	inner *Progress
}

// NewProgress returns the counters of a run that is about to begin.
func NewProgress(after ReadyAfter) *Progress {
	return &Progress{after: after, state: protocol.StateListing}
}

func (p *Progress) set(state, message string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state, p.message = state, message
	p.samples = nil
	if state == protocol.StateComplete {
		p.ready.Store(true)
	}
}

// Fail records why a run failed, or never began.
func (p *Progress) Fail(message string, retryable bool) {
	p.set(protocol.StateFailed, message)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retryable = retryable
}

// Identify sets the ID and the run that the status reports.
func (p *Progress) Identify(id, run string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.id, p.run = id, run
}

// AskFinal asks a mirror to compare all files in a pass that is yet to begin, and to report final in its
// status after it. Any client that reaches the port can ask, and the status repeats the value, so
// anything but what protocol.FinalQuery describes is ignored.
func (p *Progress) AskFinal(final string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	run, text, _ := strings.Cut(final, "/")
	passes, err := strconv.ParseInt(text, 10, 64)
	if err != nil || run == "" || run != p.run || strconv.FormatInt(passes, 10) != text {
		return
	}
	p.requestedFinal = final
}

// takeFinal returns and clears the requested final upload: each request is for one pass.
func (p *Progress) takeFinal() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	final := p.requestedFinal
	p.requestedFinal = ""
	return final
}

// passDone counts a pass of a mirror; final is the final upload requested when the pass began, and empty
// if it did not compare all files.
func (p *Progress) passDone(final string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if final != "" {
		p.final = final
	}
	p.passes.Add(1)
}

// Note adds a note for people about a run that succeeds.
func (p *Progress) Note(note string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Contains(p.notes, note) {
		p.notes = append(p.notes, note)
	}
}

// replaceNote adds a note that begins with a count, replacing the note with the previous count.
func (p *Progress) replaceNote(text string, count int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notes = slices.DeleteFunc(p.notes, func(n string) bool { return strings.HasSuffix(n, " "+text) })
	p.notes = append(p.notes, strconv.FormatInt(count, 10)+" "+text)
}

// countVerified counts a file of this run by the check that it has passed.
func (p *Progress) countVerified(kind string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.checks == nil {
		p.checks = map[string]int64{}
	}
	p.checks[kind]++
}

// hasVerified reports whether a file of this run has passed a check of that kind.
func (p *Progress) hasVerified(kind string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.checks[kind] > 0
}

// resetVerified resets the counts for another run.
func (p *Progress) resetVerified() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.checks = nil
}

// checksLocked returns how many files each check has verified.
func (p *Progress) checksLocked() string {
	var words []string
	for _, kind := range slices.Sorted(maps.Keys(p.checks)) {
		words = append(words, kind+": "+strconv.FormatInt(p.checks[kind], 10))
	}
	return strings.Join(words, ", ")
}

// setRevision sets the revision of the fetched objects.
func (p *Progress) setRevision(revision string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.revision = revision
}

// setIndex sets the digest of a complete directory's index.
func (p *Progress) setIndex(digest string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.index = digest
}

// setContents sets the digest of the complete contents.
func (p *Progress) setContents(contents string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.contents = contents
}

// setUploaded sets how many of a directory's files, and how many bytes, are uploaded in their present state.
func (p *Progress) setUploaded(files, bytes int64) {
	p.filesDone.Store(files)
	p.durable.Store(bytes)
	p.arrived.Store(bytes)
}

// fileDone counts a file that is on disk and in the manifest.
func (p *Progress) fileDone(bytes int64) {
	files, total := p.filesDone.Add(1), p.durable.Add(bytes)
	if p.after.Files > 0 && files >= p.after.Files || p.after.Bytes > 0 && total >= p.after.Bytes {
		p.ready.Store(true)
	}
}

// delegate shows the progress of a run that this one waits for; nil shows its own again.
func (p *Progress) delegate(inner *Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inner = inner
}

// holdReady keeps Ready false until releaseReady.
func (p *Progress) holdReady() { p.held.Store(true) }

func (p *Progress) releaseReady() { p.held.Store(false) }

// Ready reports whether the destination is usable.
func (p *Progress) Ready() bool { return p.ready.Load() && !p.held.Load() }

// Refused returns how many keys were refused.
func (p *Progress) Refused() int64 { return p.refused.Load() }

// Status returns the progress of the run at now.
func (p *Progress) Status(now time.Time) protocol.Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inner != nil {
		s := p.inner.Status(now)
		s.State, s.Ready, s.Retryable, s.Message = protocol.StateFetching, false, false, "fetching layers that are unpacked later"
		s.ID, s.Run = p.id, p.run
		return s
	}
	s := protocol.Status{
		State: p.state, Message: p.message, Retryable: p.retryable, Ready: p.Ready(), Refused: p.refused.Load(),
		FilesDone: p.filesDone.Load(), FilesTotal: p.filesTotal.Load(),
		BytesDone: p.arrived.Load(), BytesTotal: p.bytesTotal.Load(),
		Notes: slices.Clone(p.notes), Checks: p.checksLocked(), Revision: p.revision, Index: p.index, Contents: p.contents, OldVersions: p.oldVersions.Load(),
		ID: p.id, Run: p.run, Passes: p.passes.Load(), Final: p.final,
	}
	if p.state != protocol.StateFetching {
		return s
	}
	if n := len(p.samples); n == 0 || now.Sub(p.samples[n-1].at) >= 500*time.Millisecond {
		p.samples = append(p.samples, sample{now, s.BytesDone})
	}
	for len(p.samples) > 2 && now.Sub(p.samples[1].at) >= rateWindow {
		p.samples = p.samples[1:]
	}
	first := p.samples[0]
	if passed := now.Sub(first.at).Seconds(); passed > 0 {
		s.BytesPerSecond = max(0, int64(float64(s.BytesDone-first.bytes)/passed))
	}
	if s.BytesPerSecond > 0 {
		s.ETASeconds = max(0, s.BytesTotal-s.BytesDone) / s.BytesPerSecond
	}
	return s
}
