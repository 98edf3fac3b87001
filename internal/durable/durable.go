// Package durable writes files so that a crash leaves what was there before or all of what is
// new.
package durable

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// ReplaceFile replaces a file, which only its owner may read, and makes its directory.
func ReplaceFile(file string, content []byte) error {
	dir := filepath.Dir(file)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := WriteFile(file+".new", content); err != nil {
		return err
	}
	if err := os.Rename(file+".new", file); err != nil {
		return err
	}
	return Sync(dir, filepath.Dir(dir)) // the directory may be new as well
}

// WriteFile writes a file in place, which only its owner may read. Its name lasts once its
// directory is synced.
func WriteFile(file string, content []byte) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Sync(), f.Close())
}

// Sync makes durable what was written to files and block devices, and which names directories
// hold. It flushes the caches of their disks, and changes nothing itself.
func Sync(paths ...string) error {
	for _, path := range paths {
		f, err := os.Open(path)
		if err == nil {
			err = errors.Join(f.Sync(), f.Close())
		}
		if err != nil {
			return fmt.Errorf("flush %s: %w", path, err)
		}
	}
	return nil
}
