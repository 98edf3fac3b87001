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

// trimmedFile, in the state directory, records when volumes were trimmed.
const trimmedFile = "trimmed.json"

// trimmed is the content of trimmedFile. Only the time of the next trim depends on it.
type trimmed struct {
	// Since is when the file was created; earlier trims are unknown.
	Since time.Time `json:"since"`
	// Volumes is the time of each volume's last complete trim, by its LVM UUID.
	Volumes map[string]time.Time `json:"volumes"`
}

// TrimmedSince returns since when trims are recorded. The first call starts that.
func (e *Engine) TrimmedSince(ctx context.Context) (time.Time, error) {
	t, err := e.readTrimmed()
	if err == nil {
		return t.Since, nil
	}
	t, err = e.changeTrimmed(ctx, func(*trimmed) {})
	return t.Since, err
}

// noteTrimmed records that a volume was trimmed, and deletes the entries of volumes that are gone.
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

// changeTrimmed replaces the file atomically: a crash leaves the old one or the new one. If it cannot be
// read, or is torn, it is created again.
func (e *Engine) changeTrimmed(ctx context.Context, change func(*trimmed)) (trimmed, error) {
	release, err := e.locks.Acquire(ctx, "trimmed.lock", "trimmed")
	if err != nil {
		return trimmed{}, err
	}
	defer release()
	t, err := e.readTrimmed()
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			e.log.WithError(err).Warn("the record of trim times cannot be read, and is started again")
		}
		t = trimmed{Since: e.now().UTC(), Volumes: map[string]time.Time{}}
	}
	change(&t)
	if err := durable.ReplaceJSON(filepath.Join(e.stateDir, trimmedFile), t); err != nil {
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
