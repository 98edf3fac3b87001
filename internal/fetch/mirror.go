package fetch

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// MirrorConfig describes what to mirror.
type MirrorConfig struct {
	PutConfig
	// Every is the minimum pause between two passes over the directory. A long pass is followed by a
	// longer pause.
	Every time.Duration
	// ID is echoed in the status.
	ID string
}

// mirror is one call of Mirror.
type mirror struct {
	*upload
	every        time.Duration
	known        map[string]string // ETags of files whose present state is at the target, by path
	log          *jsonLog
	lines        int       // in log
	logHeader    string    // boot and target of the lines, see mirrored
	failedPasses int       // failed passes in a row
	begun        time.Time // of the current pass
	// final is the last requested final upload, until a pass has compared all files.
	final string
}

// settleTime is how long ago a file must have changed for the mirror to skip it until it changes again:
// the kernel's clock for files is coarse, and a program that has a file mapped changes its times only
// with the first write after each sync.
const settleTime = 2 * time.Second

// Mirror uploads the files that change in a directory, and verifies them, until ctx ends. It never
// gives up: failed uploads are in the status, and are retried. Nothing is removed at the target. Its
// error is a *store.Error.
func Mirror(ctx context.Context, config MirrorConfig, progress *Progress) error {
	progress.Identify(config.ID, strconv.FormatUint(rand.Uint64(), 36))
	m := &mirror{upload: &upload{PutConfig: config.PutConfig, progress: progress}, every: config.Every, known: map[string]string{}}
	m.onVerified = m.recordUploaded
	if err := m.connect(ctx); err != nil {
		err = failed(err)
		progress.Fail(err.Error(), false)
		return err
	}
	if err := m.readLog(bootID()); err != nil {
		m.Log.WithError(err).Warn("Cannot read which files were uploaded earlier; they are compared again")
	}
	defer m.closeLog()
	progress.ready.Store(true)
	for {
		begun := time.Now()
		m.pass(ctx)
		pause := max(m.every, 5*time.Since(begun))
		if m.failedPasses > 0 {
			pause = max(m.every, store.BackoffDelay(m.failedPasses, rand.Float64()))
		}
		if err := store.Wait(ctx, pause); err != nil {
			err = &store.Error{Retryable: true, Err: fmt.Errorf("mirror %s: %w", m.Dir, err)}
			progress.Fail(err.Error(), true)
			return err
		}
	}
}

// pass lists the directory once, and uploads the files whose present state is not at the target.
func (m *mirror) pass(ctx context.Context) {
	m.refused, m.failures = nil, nil
	m.progress.refused.Store(0)
	m.begun = time.Now()
	m.final = cmp.Or(m.progress.takeFinal(), m.final)
	err := m.local.Sync()
	var files []store.Object
	var total int64
	if err == nil {
		files, total, err = m.list(ctx)
	}
	if err != nil {
		m.failedPasses++
		m.progress.set(protocol.StateMirroring, "cannot list the directory; it is retried: "+err.Error())
		return
	}
	m.shorten(files)
	m.shortenSent(files)
	var changed []store.Object
	left := int64(0)
	for _, o := range files {
		if m.known[o.Path] != o.ETag || m.final != "" {
			changed = append(changed, o)
			left += o.Size
		}
	}
	m.progress.filesTotal.Store(int64(len(files)))
	m.progress.bytesTotal.Store(total)
	m.progress.setUploaded(int64(len(files)-len(changed)), total-left)
	if m.failedPasses == 0 {
		m.progress.set(protocol.StateMirroring, "")
	}
	m.report(ctx, len(changed), m.sendAll(ctx, changed))
}

// report reports how a pass ended.
func (m *mirror) report(ctx context.Context, changed int, err error) {
	if ctx.Err() != nil {
		return
	}
	if err == nil && len(m.failures) > 0 {
		err = m.failures[0]
	}
	message := ""
	switch {
	case err != nil:
		m.failedPasses++
		message = fmt.Sprintf("%d of %d changed files could not be uploaded and are retried; the first: %s", max(1, len(m.failures)), changed, err)
	case len(m.refused) > 0:
		m.failedPasses = 0
		message = fmt.Sprintf("%s cannot be uploaded, the first: %s", formatFiles(len(m.refused)), m.refused[0])
	default:
		m.failedPasses = 0
		m.progress.passDone(m.final)
		m.final = ""
	}
	m.progress.set(protocol.StateMirroring, message)
}
