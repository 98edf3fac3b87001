package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/flexlvm/flexlvm/test/vm"
)

// cached returns the folder name-<key> of the cache, after build filled it
// where it was not there. Two processes never build the same thing at once,
// and a build that was cut short leaves nothing that could be taken for done.
func cached(ctx context.Context, name, key string, build func(dir string) error) (string, error) {
	cache, err := vm.CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, name+"-"+key)
	if _, err := os.Stat(dir); err == nil {
		now := time.Now()
		return dir, os.Chtimes(dir, now, now) // in use: see removeUnused
	}
	unlock, err := vm.Lock(ctx, filepath.Join(cache, name+".lock"), nil)
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	tmp := filepath.Join(cache, name+".tmp")
	if err := os.RemoveAll(tmp); err != nil {
		return "", fmt.Errorf("clear cache: %w", err)
	}
	if err := os.MkdirAll(tmp, 0o755); err != nil {
		return "", fmt.Errorf("fill cache: %w", err)
	}
	if err := build(tmp); err != nil {
		return "", errors.Join(fmt.Errorf("build %s: %w", name, err), os.RemoveAll(tmp))
	}
	if err := os.Rename(tmp, dir); err != nil {
		return "", fmt.Errorf("fill cache: %w", err)
	}
	return dir, removeUnused(filepath.Join(cache, name+"-"+strings.Repeat("[0-9a-f]", keyLength)))
}

// unusedFor is how long a thing is kept that was made from other inputs.
const unusedFor = 2 * 24 * time.Hour

// removeUnused removes the folders of that pattern that were not used of late.
func removeUnused(pattern string) error {
	dirs, err := filepath.Glob(pattern)
	if err != nil {
		return fmt.Errorf("clear cache: %w", err)
	}
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err != nil || time.Since(info.ModTime()) < unusedFor {
			continue // gone meanwhile, or in use
		}
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("clear cache: %w", err)
		}
	}
	return nil
}

const keyLength = 16

// keyOf hashes what a cached thing is made from.
func keyOf(inputs ...[]byte) string {
	h := sha256.New()
	for _, in := range inputs {
		fmt.Fprintf(h, "%d:", len(in))
		h.Write(in)
	}
	return hex.EncodeToString(h.Sum(nil))[:keyLength]
}
