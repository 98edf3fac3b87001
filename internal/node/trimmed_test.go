package node

import (
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/lock"
)

// An unreadable file is replaced by a new one, as if there were none.
func TestTrimmedSince(t *testing.T) {
	dir := t.TempDir()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	log := logrus.New()
	log.SetOutput(io.Discard)
	e := &Engine{stateDir: dir, locks: lock.Dir(filepath.Join(dir, "lock")), log: log, now: func() time.Time { return now }}
	begun := func() time.Time {
		since, err := e.TrimmedSince(t.Context())
		require.NoError(t, err)
		return since
	}
	require.Equal(t, now, begun())
	first := now
	now = now.Add(time.Hour)
	require.Equal(t, first, begun())
	_, err := e.changeTrimmed(t.Context(), func(is *trimmed) { is.Volumes["uuid"] = now })
	require.NoError(t, err)
	is, err := e.readTrimmed()
	require.NoError(t, err)
	require.Equal(t, trimmed{Since: first, Volumes: map[string]time.Time{"uuid": now}}, is)

	for _, damage := range []string{"", "{", "null", "{}", `{"since": "2026-01-02T03:04:05Z"}`, `{"volumes": {}}`} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, trimmedFile), []byte(damage), 0o600))
		_, err := e.readTrimmed()
		require.Error(t, err, damage)
		require.Equal(t, now, begun(), damage)
	}
}
