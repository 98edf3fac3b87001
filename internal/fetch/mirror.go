package fetch

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	"github.com/flexlvm/flexlvm/internal/fetch/dirstore"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// mirroredFile remembers, beside the manifest, what was uploaded: lines of mirrored.
const mirroredFile = store.ControlDir + "/mirrored.jsonl"

// mirrored is a file as it was when it was seen at the target. The ETag of a local file
// changes with anything that is done to it, whatever times a program gives it. A line
// without a path names the target of those that follow.
type mirrored struct {
	Path string `json:"path,omitempty"`
	ETag string `json:"etag"`
}

// MirrorConfig says what to mirror.
type MirrorConfig struct {
	PutConfig
	// Every is the least time from one look at the directory to the next. Where a look takes
	// long, they are further apart.
	Every time.Duration
	// ID is echoed in the status.
	ID string
}

// mirror is one call of Mirror.
type mirror struct {
	*upload
	every time.Duration
	known map[string]string // ETags of files that are at the target as they are, by path
	log   *os.File
	fails int       // passes in a row
	begun time.Time // the pass
}

// settled is how long ago a file must have changed before the mirror looks at it no more
// until it changes again: the kernel's clock for files is coarse, and a program that has
// a file mapped changes its times only with the first write after each sync.
const settled = 2 * time.Second

// Mirror uploads what changes in a directory, and verifies it, until ctx ends. It never
// gives up: what it cannot upload is in the status, and is tried again. Nothing is removed
// at the target. Its error is a *store.Error.
func Mirror(ctx context.Context, config MirrorConfig, progress *Progress) error {
	progress.Identify(config.ID, strconv.FormatUint(rand.Uint64(), 36))
	m := &mirror{upload: &upload{PutConfig: config.PutConfig, progress: progress}, every: config.Every, known: map[string]string{}}
	m.verified = m.remember
	if err := m.connect(ctx); err != nil {
		err = failed(err)
		progress.Fail(err.Error(), false)
		return err
	}
	if err := m.recall(); err != nil {
		m.Log.WithError(err).Warn("What was uploaded earlier is compared again")
	}
	defer m.forget()
	progress.ready.Store(true)
	for {
		begun := time.Now()
		m.pass(ctx)
		pause := max(m.every, 5*time.Since(begun))
		if m.fails > 0 {
			pause = max(m.every, store.Pause(m.fails, rand.Float64()))
		}
		if err := store.Wait(ctx, pause); err != nil {
			err = &store.Error{Retryable: true, Err: fmt.Errorf("mirror %s: %w", m.Dir, err)}
			progress.Fail(err.Error(), true)
			return err
		}
	}
}

// pass looks at the directory once, and uploads what is not at the target as it is.
func (m *mirror) pass(ctx context.Context) {
	m.refused, m.failures = nil, nil
	m.progress.refused.Store(0)
	m.begun = time.Now()
	final := m.progress.askedFinal()
	err := m.local.Sync()
	var files []store.Object
	var total int64
	if err == nil {
		files, total, err = m.list(ctx)
	}
	if err != nil {
		m.fails++
		m.progress.set(protocol.StateMirroring, "the directory cannot be listed, which is tried again: "+err.Error())
		return
	}
	var changed []store.Object
	left := int64(0)
	for _, o := range files {
		if m.known[o.Path] != o.ETag || final != "" {
			changed = append(changed, o)
			left += o.Size
		}
	}
	m.progress.filesTotal.Store(int64(len(files)))
	m.progress.bytesTotal.Store(total)
	m.progress.synced(int64(len(files)-len(changed)), total-left)
	if m.fails == 0 {
		m.progress.set(protocol.StateMirroring, "")
	}
	m.tell(ctx, len(changed), m.sendAll(ctx, changed), final)
}

// tell says how a pass ended that compared all files if final is not empty.
func (m *mirror) tell(ctx context.Context, changed int, err error, final string) {
	if ctx.Err() != nil {
		return
	}
	if err == nil && len(m.failures) > 0 {
		err = m.failures[0]
	}
	message := ""
	switch {
	case err != nil:
		m.fails++
		message = fmt.Sprintf("%d of %d changed files are not uploaded, which is tried again; the first: %s", max(1, len(m.failures)), changed, err)
	case len(m.refused) > 0:
		m.fails = 0
		message = fmt.Sprintf("%s cannot be uploaded, the first: %s", countOf(len(m.refused)), m.refused[0])
	default:
		m.fails = 0
		m.progress.passed(final)
	}
	m.progress.set(protocol.StateMirroring, message)
}

// recall reads what an earlier mirror of the same target has uploaded.
func (m *mirror) recall() error {
	root, err := os.OpenRoot(m.Dir)
	if err != nil {
		return fmt.Errorf("open directory: %w", err)
	}
	defer func() { _ = root.Close() }()
	if err := root.MkdirAll(store.ControlDir, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", store.ControlDir, err)
	}
	file, err := root.OpenFile(mirroredFile, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("open %s: %w", mirroredFile, err)
	}
	target := ""
	good, err := readLines(file, func(line []byte) error {
		var one mirrored
		switch {
		case json.Unmarshal(line, &one) != nil: // its file is compared again
		case one.Path == "":
			target, m.known = one.ETag, map[string]string{}
		default:
			m.known[one.Path] = one.ETag
		}
		return nil
	})
	if err == nil {
		err = file.Truncate(good)
	}
	if err != nil {
		_ = file.Close()
		m.known = map[string]string{}
		return fmt.Errorf("read %s: %w", mirroredFile, err)
	}
	m.log = file
	if own := m.S3.Endpoint + " " + m.Target.Bucket + "/" + m.prefix; target != own {
		m.known = map[string]string{}
		m.write(mirrored{ETag: own})
	}
	return nil
}

// remember notes that a file is at the target as it is. One that may have been written to
// since, without a trace, is compared again by the next pass.
func (m *mirror) remember(o store.Object) {
	if dirstore.ChangeTime(o.ETag).After(m.begun.Add(-settled)) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known[o.Path] = o.ETag
	m.write(mirrored{Path: o.Path, ETag: o.ETag})
}

// write appends a line. What cannot be written is compared again by the next process.
func (m *mirror) write(line mirrored) {
	if m.log == nil {
		return
	}
	data, err := json.Marshal(line)
	if err == nil {
		_, err = m.log.Write(append(data, '\n'))
	}
	if err != nil {
		m.Log.WithError(err).Warn("What was uploaded is not remembered")
		m.forget()
	}
}

func (m *mirror) forget() {
	if m.log != nil {
		_ = m.log.Close() // what is missing there is compared again
		m.log = nil
	}
}
