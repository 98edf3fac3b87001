package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/flexlvm/flexlvm/internal/durable"
	"github.com/flexlvm/flexlvm/internal/volumegroup"
)

// ledgerFile, in the state directory, is the ledger of declared groups.
const ledgerFile = "declared-disks.json"

// readLedger returns an empty ledger if none was written. An unreadable ledger is an error, because then it
// is unknown which disks were taken.
func (e *Engine) readLedger() (volumegroup.Ledger, error) {
	file := filepath.Join(e.stateDir, ledgerFile)
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return volumegroup.Ledger{}, nil
	}
	if err != nil {
		return volumegroup.Ledger{}, fmt.Errorf("read what disks were taken: %w", err)
	}
	var l volumegroup.Ledger
	if err := json.Unmarshal(text, &l); err != nil {
		return volumegroup.Ledger{}, fmt.Errorf("read what disks were taken: %s: %w; no disk is taken until it can be read; if it is beyond repair, remove it once every disk that the declarations match is in its group", file, err)
	}
	return l, nil
}

// writeLedger replaces the ledger atomically: a crash leaves the old one or the new one.
func (e *Engine) writeLedger(l volumegroup.Ledger) error {
	if err := durable.ReplaceJSON(filepath.Join(e.stateDir, ledgerFile), l); err != nil {
		return fmt.Errorf("write down what disks are taken: %w", err)
	}
	return nil
}
