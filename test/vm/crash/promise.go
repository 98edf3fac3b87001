//go:build linux

package main

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A promise is the acknowledged state of a volume.
type promise struct {
	spec  volume.Spec
	state volume.State
	size  volume.Bytes
	fs    string           // UUID of its file system, if the volume was mounted before
	files map[string]int64 // by name: their sizes; the name determines the content
	// dataset is the number of files of the completely loaded dataset; 0: none.
	dataset int
}

// promises are the promises of all volumes. Volumes without one must not exist.
type promises map[volume.Name]promise

func (p promises) clone() promises {
	c := maps.Clone(p)
	for n, v := range c {
		v.files = maps.Clone(v.files)
		c[n] = v
	}
	return c
}

// ordered returns the promises by name, so that with the same seed, a failure names the same volume first.
func (p promises) ordered() []promise {
	all := make([]promise, 0, len(p))
	for _, n := range slices.Sorted(maps.Keys(p)) {
		all = append(all, p[n])
	}
	return all
}

// change changes a volume's promise.
func (p promises) change(n volume.Name, change func(*promise)) {
	v := p[n]
	change(&v)
	p[n] = v
}

// content returns the content of a file of this name and size.
func content(name string, size int64) []byte {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	var seed [32]byte
	copy(seed[:], h.Sum(nil))
	b := make([]byte, size)
	_, _ = rand.NewChaCha8(seed).Read(b)
	return b
}

// checkFile checks that a promised file has the content that was written.
func checkFile(dir, name string, size int64) error {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return fmt.Errorf("what was fsynced is lost: %w", err)
	}
	if !bytes.Equal(b, content(name, size)) {
		return fmt.Errorf("what was fsynced is lost: %s holds %d bytes that are not the %d that were written", name, len(b), size)
	}
	return nil
}

// checkFiles checks that a volume's directory holds the promised files, and none of another volume.
func checkFiles(dir string, p promise) error {
	for file, size := range p.files {
		if err := checkFile(dir, file, size); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if _, promised := p.files[e.Name()]; !promised && !slices.Contains(unpromised, e.Name()) {
			return fmt.Errorf("it holds %s, which it was never given", e.Name())
		}
	}
	return err
}

// unpromised are the names that a volume may contain beside its promised files.
var unpromised = []string{"noise", "set", "lost+found"}
