// Package built keeps what is costly to build in the cache folder: one folder for each
// result, named after a key of its inputs.
package built

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/flexlvm/flexlvm/test/vm"
)

// Once returns the folder name-<key> of the cache, after build filled it
// where it was not there. Two processes never build the same thing at once,
// and a build that was cut short leaves nothing that could be taken for done.
func Once(ctx context.Context, name, key string, build func(dir string) error) (string, error) {
	cache, err := vm.CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, name+"-"+key)
	if _, err := os.Stat(dir); err == nil {
		now := time.Now()
		return dir, os.Chtimes(dir, now, now) // in use: see RemoveUnused
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
	return dir, RemoveUnused(filepath.Join(cache, name+"-"+strings.Repeat("[0-9a-f]", keyLength)))
}

// unusedFor is how long a thing is kept that was made from other inputs.
const unusedFor = 2 * 24 * time.Hour

// RemoveUnused removes the folders of that pattern that were not used of late.
func RemoveUnused(pattern string) error {
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

// Key hashes what a cached thing is made from.
func Key(inputs ...[]byte) string {
	h := sha256.New()
	for _, in := range inputs {
		fmt.Fprintf(h, "%d:", len(in))
		h.Write(in)
	}
	return hex.EncodeToString(h.Sum(nil))[:keyLength]
}

// Go builds a program of a Go module: the package pkg, as the module in folder dir
// sees it, into the file to. It is static.
func Go(ctx context.Context, dir, to, pkg string, flags ...string) error {
	cmd := exec.CommandContext(ctx, "go", append(append([]string{"build", "-o", to}, flags...), pkg)...)
	cmd.Dir = dir
	// The compiler may take memory for time: it collects less often.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOGC=400")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", pkg, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Program builds a program of this checkout, the package pkg, into the file to. What was built
// last stays in the cache, and Go looks whether that is still what the source makes: linking it
// again would take seconds, for each test that wants it.
func Program(ctx context.Context, to, pkg string) error {
	root, err := vm.SourceDir()
	if err != nil {
		return err
	}
	cache, err := vm.CacheDir()
	if err != nil {
		return err
	}
	kept := filepath.Join(cache, "program-"+filepath.Base(pkg))
	unlock, err := vm.Lock(ctx, kept+".lock", nil)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(kept); err == nil {
		if err := copyProgram(ctx, kept, to); err != nil {
			return err
		}
	}
	if err := Go(ctx, root, to, pkg); err != nil {
		return err
	}
	// As a whole: Go would take half of a program for the program.
	if err := copyProgram(ctx, to, kept+".tmp"); err != nil {
		return err
	}
	return os.Rename(kept+".tmp", kept)
}

// copyProgram leaves the writing to another process: what this one had open for writing, its
// children would have, too, and a program that somebody has open for writing cannot be started.
func copyProgram(ctx context.Context, from, to string) error {
	if out, err := exec.CommandContext(ctx, "cp", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s: %w: %s", from, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Module builds a program that a nested module requires, once: the package pkg,
// as the module in folder dir sees it, with further flags of go build. The program in the
// cache is called name.
func Module(ctx context.Context, dir, name, pkg string, log io.Writer, flags ...string) (string, error) {
	inputs := [][]byte{[]byte(runtime.Version() + runtime.GOARCH + pkg + strings.Join(flags, " "))}
	files := []string{filepath.Join(dir, "go.mod"), filepath.Join(dir, "go.sum")}
	if strings.HasPrefix(pkg, "./") { // of the module itself, whose source go.sum does not cover
		sources, err := filepath.Glob(filepath.Join(dir, pkg, "*.go"))
		if err != nil {
			return "", fmt.Errorf("build %s: %w", name, err)
		}
		files = append(files, sources...)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("build %s: %w", name, err)
		}
		inputs = append(inputs, content)
	}
	folder, err := Once(ctx, name, Key(inputs...), func(folder string) error {
		fmt.Fprintf(log, "building %s, once; this takes some minutes\n", name)
		return Go(ctx, dir, filepath.Join(folder, name), pkg, append([]string{"-trimpath", "-ldflags", "-s -w"}, flags...)...)
	})
	return filepath.Join(folder, name), err
}

// Libraries returns the paths of what a program of this machine links, its loader among them.
func Libraries(ctx context.Context, program string) (paths []string, err error) {
	linked, err := exec.CommandContext(ctx, "ldd", program).Output()
	if err != nil {
		return nil, fmt.Errorf("list the libraries of %s: %w", program, err)
	}
	for _, word := range strings.Fields(string(linked)) {
		if filepath.IsAbs(word) {
			paths = append(paths, word)
		}
	}
	return paths, nil
}
