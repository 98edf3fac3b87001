package node

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// wakeFile is touched to wake the node daemon.
const wakeFile = "called"

// WakeDaemon makes the node daemon run a round soon, for a reason that the API does not show: a person has
// created a volume group or changed the state of a volume, a call waits for room, or a volume has grown. If
// no daemon runs, it has no lasting effect.
func WakeDaemon(stateDir string) error {
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return fmt.Errorf("wake the node daemon: %w", err)
	}
	if err := touch(filepath.Join(stateDir, wakeFile)); err != nil {
		return fmt.Errorf("wake the node daemon: %w", err)
	}
	return nil
}

// WokenAt returns when WakeDaemon was last called; zero if never, or if that is unknown.
func WokenAt(stateDir string) time.Time {
	return touchedAt(filepath.Join(stateDir, wakeFile))
}

// wakeDaemon is WakeDaemon for work that the node daemon does in its next round in any case.
func (e *Engine) wakeDaemon() {
	if err := WakeDaemon(e.stateDir); err != nil {
		e.log.WithError(err).Warn("cannot wake the node daemon; it handles this in its next round")
	}
}
