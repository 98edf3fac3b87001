package fetch

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/flexlvm/flexlvm/internal/fetch/dirstore"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// mirroredFile records, beside the manifest, what was uploaded: lines of mirrored.
const mirroredFile = store.ControlDir + "/mirrored.jsonl"

// mirrored is the state in which a file was seen at the target. The ETag of a local file changes with
// anything that is done to it, whatever times a program sets. A line without a path names the target
// and the boot of the node for which the following lines were written.
type mirrored struct {
	Path string `json:"path,omitempty"`
	ETag string `json:"etag"`
}

// bootID returns the ID of the node's current boot; empty if it is unknown.
func bootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "" // readLog then trusts no earlier line
	}
	return strings.TrimSpace(string(data))
}

// readLog reads what an earlier mirror of the same target has uploaded in the same boot. After a power
// cut a file may have its old times and size but other content: a program that syncs content alone
// (fdatasync) does not sync the times.
func (m *mirror) readLog(boot string) error {
	if boot == "" {
		return errors.New("cannot determine whether the node was restarted meanwhile")
	}
	root, err := os.OpenRoot(m.Dir)
	if err != nil {
		return fmt.Errorf("open directory: %w", err)
	}
	defer func() { _ = root.Close() }()
	if err := root.MkdirAll(store.ControlDir, 0o755); err != nil {
		return fmt.Errorf("create %s: %w", store.ControlDir, err)
	}
	target := ""
	m.log, err = openLog(root, mirroredFile, func(line []byte) {
		m.lines++
		var one mirrored
		switch {
		case json.Unmarshal(line, &one) != nil: // its file is compared again
		case one.Path == "":
			target, m.known = one.ETag, map[string]string{}
		default:
			m.known[one.Path] = one.ETag
		}
	})
	if err != nil {
		m.known = map[string]string{}
		return err
	}
	m.logHeader = boot + " " + m.S3.Endpoint + " " + m.Target.Bucket + "/" + m.prefix
	if target != m.logHeader {
		m.known = map[string]string{}
		m.write(mirrored{ETag: m.logHeader})
	}
	return nil
}

// recordUploaded records that the present state of a file is at the target. A file that may have been written
// to since, without a trace, is compared again by the next pass.
func (m *mirror) recordUploaded(o store.Object) {
	if dirstore.ChangeTime(o.ETag).After(m.begun.Add(-settleTime)) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known[o.Path] = o.ETag
	m.write(mirrored{Path: o.Path, ETag: o.ETag})
}

// write appends a line. A file whose line cannot be written is compared again by the next process.
func (m *mirror) write(line mirrored) {
	if m.log == nil {
		return
	}
	m.lines++
	if err := m.log.append(line); err != nil {
		m.Log.WithError(err).Warn("Cannot record in .flexlvm/mirrored.jsonl that the file was uploaded")
		m.closeLog()
	}
}

func (m *mirror) closeLog() {
	if m.log != nil {
		m.log.Close()
		m.log = nil
	}
}

// minRewriteLines is how many lines a log may have before it is rewritten, however few files there are.
const minRewriteLines = 10_000

// shorten forgets files that have left the directory, once they are most of the known ones, and
// rewrites mirroredFile if it has far more lines than there are files: it takes space in the user's
// volume.
func (m *mirror) shorten(files []store.Object) {
	limit := 2*len(files) + minRewriteLines
	if m.lines < limit && len(m.known) < limit {
		return
	}
	m.lines = 0 // if this fails, it is retried after as many lines
	known := map[string]string{}
	for _, o := range files {
		if m.known[o.Path] == o.ETag {
			known[o.Path] = o.ETag
		}
	}
	m.known = known
	if m.log == nil {
		return
	}
	log, err := m.rewriteLog(known)
	if err != nil {
		m.Log.WithError(err).Warn("Cannot shorten .flexlvm/mirrored.jsonl")
		return
	}
	m.closeLog()
	m.log, m.lines = log, len(known)+1
}

// rewriteLog durably replaces mirroredFile, and returns the new one.
func (m *mirror) rewriteLog(known map[string]string) (*jsonLog, error) {
	return replaceLog(m.Dir, mirroredFile, func(yield func(any) bool) {
		more := yield(mirrored{ETag: m.logHeader})
		for path, etag := range known {
			if more = more && yield(mirrored{Path: path, ETag: etag}); !more {
				return
			}
		}
	})
}
