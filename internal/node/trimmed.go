package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/flexlvm/flexlvm/internal/durable"
)

// trimmedFile holds when volumes were trimmed, in the state directory.
const trimmedFile = "trimmed.json"

// trimmed is what that file holds. Nothing but the time of the next trim hangs on it.
type trimmed struct {
	// Since is when it was begun: of earlier trims nothing is known.
	Since time.Time `json:"since"`
	// Volumes are when each was last trimmed to the end, by LVM's UUID.
	Volumes map[string]time.Time `json:"volumes"`
}

// TrimmedSince returns since when it is written down which volumes were trimmed; from the
// first call on.
func (e *Engine) TrimmedSince(ctx context.Context) (time.Time, error) {
	t, err := e.readTrimmed()
	if err == nil {
		return t.Since, nil
	}
	t, err = e.changeTrimmed(ctx, func(*trimmed) {})
	return t.Since, err
}

// noteTrimmed writes down that a volume was trimmed, and forgets those that are gone.
func (e *Engine) noteTrimmed(ctx context.Context, uuid string) error {
	all, err := e.lvm.Volumes(ctx)
	if err != nil {
		return err
	}
	there := make(map[string]bool, len(all))
	for _, lv := range all {
		there[lv.UUID] = true
	}
	_, err = e.changeTrimmed(ctx, func(t *trimmed) {
		t.Volumes[uuid] = e.now().UTC()
		for known := range t.Volumes {
			if !there[known] {
				delete(t.Volumes, known)
			}
		}
	})
	return err
}

// changeTrimmed replaces the file so that a crash leaves the old one or the new. One that
// cannot be read, or is torn, is begun anew.
func (e *Engine) changeTrimmed(ctx context.Context, change func(*trimmed)) (trimmed, error) {
	release, err := e.locks.Acquire(ctx, "trimmed.lock", "trimmed")
	if err != nil {
		return trimmed{}, err
	}
	defer release()
	t, err := e.readTrimmed()
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			e.log.WithError(err).Warn("when volumes were trimmed is not known any more, and is written down anew")
		}
		t = trimmed{Since: e.now().UTC(), Volumes: map[string]time.Time{}}
	}
	change(&t)
	text, err := json.MarshalIndent(t, "", "  ")
	if err != nil {
		return t, fmt.Errorf("write down when volumes were trimmed: %w", err)
	}
	if err := durable.ReplaceFile(filepath.Join(e.stateDir, trimmedFile), append(text, '\n')); err != nil {
		return t, fmt.Errorf("write down when volumes were trimmed: %w", err)
	}
	return t, nil
}

func (e *Engine) readTrimmed() (trimmed, error) {
	file := filepath.Join(e.stateDir, trimmedFile)
	text, err := os.ReadFile(file)
	if err != nil {
		return trimmed{}, fmt.Errorf("read when volumes were trimmed: %w", err)
	}
	var t trimmed
	if err := json.Unmarshal(text, &t); err != nil {
		return trimmed{}, fmt.Errorf("read when volumes were trimmed: %s: %w", file, err)
	}
	if t.Since.IsZero() || t.Volumes == nil {
		return trimmed{}, fmt.Errorf("read when volumes were trimmed: %s does not say since when it is kept", file)
	}
	return t, nil
}
