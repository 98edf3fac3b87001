package fetch

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// jsonLog is a file of JSON lines that only grows. Opening it cuts off a line that a crash has torn. One
// goroutine at a time appends.
type jsonLog struct {
	file *os.File
	buf  bytes.Buffer
}

// openLog opens the log name, and calls each with every whole line.
func openLog(root *os.Root, name string, each func(line []byte)) (*jsonLog, error) {
	file, err := root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	good, err := readLines(file, each)
	if err == nil {
		err = file.Truncate(good)
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return &jsonLog{file: file}, nil
}

// readLinesIn calls each with every whole line of a file below dir, while others may append to it. found is false if there
// is no such file.
func readLinesIn(dir, name string, each func(line []byte)) (found bool, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return false, fmt.Errorf("open directory: %w", err)
	}
	defer func() { _ = root.Close() }() // it was only read
	file, err := root.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = file.Close() }()
	if _, err := readLines(file, each); err != nil {
		return true, fmt.Errorf("read %s: %w", name, err)
	}
	return true, nil
}

// readLines calls each with every line that ends in a newline, and returns where the last one ends.
func readLines(in io.Reader, each func(line []byte)) (int64, error) {
	r := bufio.NewReaderSize(in, 1<<16)
	good := int64(0)
	for {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return good, nil
		}
		if err != nil {
			return good, err
		}
		each(line)
		good += int64(len(line))
	}
}

// append writes values with one write, one line each. They are durable once the file system is synced.
func (l *jsonLog) append(values ...any) error {
	l.buf.Reset()
	enc := json.NewEncoder(&l.buf)
	enc.SetEscapeHTML(false)
	for _, v := range values {
		if err := enc.Encode(v); err != nil {
			return err
		}
	}
	if _, err := l.file.Write(l.buf.Bytes()); err != nil {
		return fmt.Errorf("append to %s: %w", l.file.Name(), err)
	}
	return nil
}

func (l *jsonLog) Close() { _ = l.file.Close() }

// replaceLog durably replaces the log name below dir, and returns the new one.
func replaceLog(dir, name string, lines iter.Seq[any]) (*jsonLog, error) {
	next := name + ".new"
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	if err := root.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	file, err := root.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	if err = writeLines(file, lines); err == nil {
		err = root.Rename(next, name)
	}
	if err == nil {
		err = syncDir(root, store.ControlDir)
	}
	if err != nil {
		_ = file.Close()
		_ = root.Remove(next) // frees its space; the next try removes what is left
		return nil, err
	}
	return &jsonLog{file: file}, nil
}

// writeLines writes JSON lines into a file, durably.
func writeLines(file *os.File, lines iter.Seq[any]) error {
	out := bufio.NewWriter(file)
	encoder := json.NewEncoder(out)
	for line := range lines {
		if err := encoder.Encode(line); err != nil {
			return err
		}
	}
	return errors.Join(out.Flush(), file.Sync())
}

// syncDir makes the names in a directory durable.
func syncDir(root *os.Root, name string) error {
	dir, err := root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
