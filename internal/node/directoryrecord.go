package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// recordSize is the size of a record's file, whatever its content.
const recordSize = int(volume.Block)

// makeRecord writes a volume's first record, and the spare file that receives the next one.
func (p *directoryPool) makeRecord(dir string, rec directoryRecord) error {
	text, err := padded(rec)
	if err != nil {
		return err
	}
	return errors.Join(writeInPlace(p.Root, path.Join(dir, spareFile), text), writeInPlace(p.Root, path.Join(dir, recordFile), text))
}

// write replaces a volume's record atomically: a crash leaves the old one or the new one. It allocates no
// space, because freeing some in a full pool begins with a new record. It overwrites the spare in place, and
// exchanges it with the record.
func (p *directoryPool) write(dir string, rec directoryRecord) error {
	text, err := padded(rec)
	if err != nil {
		return err
	}
	if err := writeInPlace(p.Root, path.Join(dir, spareFile), text); err != nil {
		return err
	}
	d, err := p.Open(dir)
	if err != nil {
		return fmt.Errorf("write record of %s: %w", dir, err)
	}
	fd := int(d.Fd())
	err = unix.Renameat2(fd, spareFile, fd, recordFile, unix.RENAME_EXCHANGE)
	if err == nil {
		err = unix.Fsync(fd)
	}
	if err = errors.Join(err, d.Close()); err != nil {
		return fmt.Errorf("write record of %s: %w", dir, err)
	}
	return nil
}

func padded(rec directoryRecord) ([]byte, error) {
	text, err := json.Marshal(rec)
	if err != nil {
		return nil, err
	}
	if len(text) >= recordSize {
		return nil, fmt.Errorf("a volume's record has %d bytes, and fewer than %d have room", len(text), recordSize)
	}
	return append(text, bytes.Repeat([]byte("\n"), recordSize-len(text))...), nil
}

// writeInPlace overwrites a file in place, durably.
func writeInPlace(root *os.Root, name string, text []byte) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	_, err = f.WriteAt(text, 0)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}
