package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/flexlvm/flexlvm/test/built"
)

// ofSnapshots prints the figures of snapshots, and the cost of snapshots and of encryption for a writer.
func ofSnapshots(ctx context.Context, dir string) error {
	writer, err := withLibraries(ctx, dir, "fio")
	if err != nil {
		return fmt.Errorf("the figures of snapshots: %w", err)
	}
	return inNode(ctx, dir, map[string]string{"/inside": "./test/bench/inside"}, map[string]string{"/fio": writer}, "snapshots", strconv.Itoa(*rounds))
}

// withLibraries returns a folder with a program of this machine, its libraries, and its dynamic loader as "loader",
// so that it runs in a node that has none of them.
func withLibraries(ctx context.Context, dir, program string) (string, error) {
	if out, err := exec.CommandContext(ctx, "test/setup.sh", program).CombinedOutput(); err != nil {
		return "", fmt.Errorf("install %s: %w: %s", program, err, out)
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return "", fmt.Errorf("find %s: %w", program, err)
	}
	libraries, err := built.Libraries(ctx, path)
	if err != nil {
		return "", err
	}
	folder := filepath.Join(dir, program+"-with-libraries")
	if err := os.Mkdir(folder, 0o755); err != nil {
		return "", err
	}
	files := map[string]string{program: path}
	for _, library := range libraries {
		name := filepath.Base(library)
		if strings.HasPrefix(name, "ld-") {
			name = "loader"
		}
		files[name] = library
	}
	for name, from := range files {
		content, err := os.ReadFile(from)
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o755); err != nil {
			return "", err
		}
	}
	return folder, nil
}
