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

// A promise is what was acknowledged of a volume.
type promise struct {
	spec  volume.Spec
	state volume.State
	size  volume.Bytes
	fs    string           // UUID of its file system, where the volume was handed out before
	files map[string]int64 // their sizes; what is in them follows from their names
	// complete: a dataset of so many files was loaded; 0 for none.
	dataset int
}

// promises are those of all volumes; one that is not there must not exist.
type promises map[volume.Name]promise

func (p promises) clone() promises {
	c := maps.Clone(p)
	for n, v := range c {
		v.files = maps.Clone(v.files)
		c[n] = v
	}
	return c
}

// ordered is in the order of names, so that a seed repeats what a failure names first.
func (p promises) ordered() []promise {
	all := make([]promise, 0, len(p))
	for _, n := range slices.Sorted(maps.Keys(p)) {
		all = append(all, p[n])
	}
	return all
}

// change changes what is promised of a volume.
func (p promises) change(n volume.Name, change func(*promise)) {
	v := p[n]
	change(&v)
	p[n] = v
}

// content is what is in a file of this name and size.
func content(name string, size int64) []byte {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	var seed [32]byte
	copy(seed[:], h.Sum(nil))
	b := make([]byte, size)
	_, _ = rand.NewChaCha8(seed).Read(b)
	return b
}

// checkFile makes sure that a promised file holds what was written to it.
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

// checkFiles makes sure that a volume's directory holds the promised files, and none that another
// volume got.
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

// unpromised are what may be in a volume beside its files.
var unpromised = []string{"noise", "set", "lost+found"}
