// Package durable writes files so that a crash leaves either the old content or all of the new.
package durable

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// ReplaceFile replaces a file atomically and creates its directory. Only the file's owner may read it.
func ReplaceFile(file string, content []byte) error {
	dir := filepath.Dir(file)
	dirs := dirsToSync(dir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := WriteFile(file+".new", content); err != nil {
		return err
	}
	if err := os.Rename(file+".new", file); err != nil {
		return err
	}
	return Sync(dirs...)
}

// ReplaceJSON replaces a file with v as indented JSON, as ReplaceFile does.
func ReplaceJSON(file string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return ReplaceFile(file, append(text, '\n'))
}

// dirsToSync returns the directories to sync once a file has been created in dir. It is called before the missing
// levels of dir are created, and returns dir, its parent, because a killed process may just have created dir, and
// the parent of each further level that does not exist. A level whose parent is not synced is lost in a power cut,
// and the file with it.
func dirsToSync(dir string) []string {
	last := filepath.Dir(dir)
	dirs := []string{dir, last}
	for {
		if _, err := os.Lstat(last); !errors.Is(err, os.ErrNotExist) {
			return dirs
		}
		last = filepath.Dir(last)
		dirs = append(dirs, last)
	}
}

// WriteFile writes a file in place. Only its owner may read it. Its name is durable once its directory is
// synced.
func WriteFile(file string, content []byte) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Sync(), f.Close())
}

// Sync makes the content of files, block devices and directories durable. It flushes the disks' caches and
// changes nothing itself.
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
