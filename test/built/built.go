// Package built keeps expensive build results in the cache folder: one folder per result, named after a key of its
// inputs.
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

// Once returns the folder name-<key> of the cache. If it does not exist, Once calls build to fill it. Two processes
// never build the same result at the same time, and an interrupted build leaves nothing that looks complete.
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

// unusedFor is how long unused results are kept.
const unusedFor = 2 * 24 * time.Hour

// RemoveUnused removes the folders that match the pattern and were not used recently.
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

// Key returns a hash of a result's inputs.
func Key(inputs ...[]byte) string {
	h := sha256.New()
	for _, in := range inputs {
		fmt.Fprintf(h, "%d:", len(in))
		h.Write(in)
	}
	return hex.EncodeToString(h.Sum(nil))[:keyLength]
}

// Go builds a static program from a Go module, into the file to. dir is the module's folder, and pkg the package as
// the module names it.
func Go(ctx context.Context, dir, to, pkg string, flags ...string) error {
	cmd := exec.CommandContext(ctx, "go", append(append([]string{"build", "-o", to}, flags...), pkg)...)
	cmd.Dir = dir
	// A higher GOGC trades memory for time.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOGC=400")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", pkg, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Program builds the package pkg of this checkout into the file to. The previous build is kept in the cache, and Go
// checks whether it is up to date: linking it again would take seconds in each test that needs it.
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
	// Atomically: Go would take a partial program for the whole.
	if err := copyProgram(ctx, to, kept+".tmp"); err != nil {
		return err
	}
	return os.Rename(kept+".tmp", kept)
}

// copyProgram has another process copy a program. A file descriptor that this process has open for writing is
// inherited by its children, and a program that a process has open for writing cannot be started.
func copyProgram(ctx context.Context, from, to string) error {
	if out, err := exec.CommandContext(ctx, "cp", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s: %w: %s", from, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Module builds, once, the package pkg as named by the nested module in folder dir, with further flags of go build.
// The program in the cache is called name.
func Module(ctx context.Context, dir, name, pkg string, log io.Writer, flags ...string) (string, error) {
	inputs := [][]byte{[]byte(runtime.Version() + runtime.GOARCH + pkg + strings.Join(flags, " "))}
	files := []string{filepath.Join(dir, "go.mod"), filepath.Join(dir, "go.sum")}
	if strings.HasPrefix(pkg, "./") { // a package of the module itself, which go.sum does not cover
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

// Libraries returns the paths of the libraries that a program of this machine links, including the dynamic loader.
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
