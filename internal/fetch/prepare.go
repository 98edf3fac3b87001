package fetch

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
)

// Prepare makes sure that a directory exists and is writable, for a cache that others
// will fill.
func Prepare(name string, progress *Progress) error {
	d, err := destination.Open(name)
	if err == nil {
		defer d.Close()
		// An earlier fetch's file stays: it describes the content.
		if _, err = d.Root.Lstat(destination.CompleteFile); errors.Is(err, fs.ErrNotExist) {
			err = d.ReplaceFile(destination.CompleteFile, []byte("{}\n"))
		}
	}
	if err != nil {
		err = failed(fmt.Errorf("prepare %s: %w", name, err))
		progress.Fail(err.Error(), false)
		return err
	}
	progress.set(protocol.StateComplete, "the directory is ready")
	return nil
}
