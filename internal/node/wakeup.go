package node

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// callFile is touched to call the node daemon.
const callFile = "called"

// WakeDaemon asks the node daemon to look at the node soon, for something has changed
// that the API does not show: a person has made a volume group, or moved a volume.
// Where no daemon runs it does nothing lasting.
func WakeDaemon(stateDir string) error {
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return fmt.Errorf("call the node daemon: %w", err)
	}
	path := filepath.Join(stateDir, callFile)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("call the node daemon: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("call the node daemon: %w", err)
	}
	now := time.Now()
	if err := os.Chtimes(path, now, now); err != nil {
		return fmt.Errorf("call the node daemon: %w", err)
	}
	return nil
}

// WokenAt tells when the node daemon was last called; zero for never, or where that
// cannot be told.
func WokenAt(stateDir string) time.Time {
	info, err := os.Stat(filepath.Join(stateDir, callFile))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}
